"""After CONFIRMED: a folder with the kernel, a module that puts it into a model, and a test that it engages there."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.arm_names import ArmName
from e2e.configuration import load_workload
from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.adoption import FILE, Adoption
from e2e.schema.evidence import Evidence
from e2e.schema.kernel import OF_MODELS, Kernel
from e2e.schema.result import CellResult, Result
from e2e.schema.words import Label, Outcome
from e2e.signatures import signature_of
from e2e.sources import digest, relative_name
from e2e.store import RESULT
from e2e.story import headline
from e2e.wording import clean, count

_MODULE = '''\
"""{what} in {where}: {verdict}.

Run {run}, result {sha}. Written by `e2e adopt`; do not edit:
`e2e validate` it again after any change.{forced}

    from {name} import apply
    applied = apply(model)      # the model that serves, in place; `applied.undo()` takes it back
"""

from pathlib import Path

from torch import nn

from e2e.adopted import Adopted, Applied

ADOPTED = Adopted(Path(__file__).parent)


def apply(model: nn.Module) -> Applied:
    """Put it at the sites where it was measured; calls of other shapes, dtypes or devices keep the model's own code."""
    return ADOPTED.apply(model)
'''
_TEST = '''\
"""Does it engage where it was measured, and nowhere else? Run it from where {workload} is."""

import pytest
from {name} import ADOPTED

pytestmark = pytest.mark.skipif(not ADOPTED.is_for_this_device(), reason="{device} is not here")


def test_it_runs_at_every_site_of_the_step_that_was_measured():
    calls = ADOPTED.trial()
    assert set(ADOPTED.record.sites) == {{site for site, number in calls.items() if number > 0}}


def test_a_step_of_another_batch_keeps_the_models_own_code():
    calls = ADOPTED.trial(batch=ADOPTED.another_batch)
    assert 0 == sum(calls.values())
'''


@dataclass(frozen=True)
class Written:
    """A folder that was written."""

    folder: Path
    text: str


def adopt(run: Path, result: Result, *, out: Path, alternative: str | None, forced: str | None) -> Written:
    """Write the folder for a run's kernel, or for PyTorch's own path that matched it.

    Raises:
        UsageError: the run does not confirm it and nobody says why it shall be, or it cannot be adopted this way.
        EnvironmentFault: the folder cannot be written.
    """
    kernel = _kernel_of(result)
    cells = _cells(result, alternative, forced)
    _check_kind(kernel, alternative)
    record = _record(run, result, kernel, cells, alternative=alternative, forced=forced)
    stem = f"{record.op}_{record.alternative or kernel.sha256[:8]}"
    name = _identifier(f"{record.op}_adopted")
    folder = out / re.sub(r"[^\w.-]+", "-", stem)
    files = {FILE: record.model_dump_json(indent=1).encode() + b"\n"}
    files |= {f"{name}.py": _module(record, name).encode(), f"test_{name}.py": _test(record, name).encode()}
    files |= {} if alternative else _sources(run, kernel)
    _write(folder, files)
    lines = [f"{folder}: {', '.join(files)}", f"in the process that serves: from {name} import apply; apply(model)"]
    return Written(folder, "\n".join([*lines, f"does it engage? pytest {folder}"]) + "\n")


def _kernel_of(result: Result) -> Kernel:
    if len(result.kernels) != 1:
        raise UsageError(f"run {result.run_id} has {count(len(result.kernels), 'kernel')}; adopt takes runs of one")
    if result.is_command:
        raise UsageError(
            f"run {result.run_id} is of a program of your own, which loads the kernel itself: adopt it there"
        )
    return result.kernels[0]


def _cells(result: Result, alternative: str | None, forced: str | None) -> list[CellResult]:
    """Cells in which it may run.

    Raises:
        UsageError: there is none.
    """
    if forced is not None and len(forced.split()) < 2:
        raise UsageError(f"--force {forced!r}: say why, in a few words that others can understand later")
    timed = [cell for cell in result.cells if cell.evidence.engagement is not None]
    if alternative is not None:
        found = [cell for cell in timed if _is_free_win(cell, alternative)]
        why = f"{alternative} was not what matched the kernel"
    else:
        found = [cell for cell in timed if result.outcome is cell.verdict.outcome is Outcome.CONFIRMED]
        why = f"the run is {headline(result)}"
    if found:
        return found
    if forced is None or not timed:
        more = " and nothing of it ran" if not timed else "; --force REASON writes it all the same"
        raise UsageError(f"run {result.run_id}: {why}{more}{_offer(result)}")
    return timed


def _is_free_win(cell: CellResult, alternative: str) -> bool:
    """Whether PyTorch's own path, in the strongest baseline, was as fast as the kernel and beat eager as shipped."""
    return cell.verdict.label is Label.MATCHED_BY_PYTORCH and _strongest(cell.evidence) == alternative


def _strongest(evidence: Evidence) -> str | None:
    return None if evidence.baseline is None else ArmName.parse(evidence.baseline).alternative


def _offer(result: Result) -> str:
    """The free win, where there is one."""
    for cell in result.cells:
        name = _strongest(cell.evidence)
        if name is not None and _is_free_win(cell, name):
            return f"; as fast, and PyTorch's own: e2e adopt {result.run_id} --alternative {name}"
    return ""


def _check_kind(kernel: Kernel, alternative: str | None) -> None:
    op, manifest = kernel.manifest.op, kernel.manifest
    if op.partition(":")[0] in OF_MODELS or manifest.kind == "patch":
        raise UsageError(f"{op} is what one model's modules compute or call; adopt takes kernels for ops with sites")
    if alternative is None and (kernel.path is None or kernel.inside is not None):
        raise UsageError(
            f"{kernel.shown} is no source file of its own, so there is none to adopt: name it in your code"
        )
    known = signature_of(op)
    if alternative is not None and (known is None or alternative not in known.alternatives):
        names = ", ".join(known.alternatives) if known else "none that can be read"
        raise UsageError(f"--alternative {alternative}: {op} has {names}")


def _record(
    run: Path,
    result: Result,
    kernel: Kernel,
    cells: Sequence[CellResult],
    *,
    alternative: str | None,
    forced: str | None,
) -> Adoption:
    workload = _workload(result)
    sites = [seen for cell in cells if cell.evidence.engagement for seen in cell.evidence.engagement.sites]
    patched = [site for site in sites if site.status == "patched"]
    calls = list({tuple(sorted(site.dims.items(), key=str)): site.dims for site in patched if site.dims}.values())
    if not calls:
        raise UsageError(f"run {result.run_id} recorded no call of the kernel, so nothing says where it may run")
    first = cells[0].evidence
    near = kernel.model_copy(update={"path": Path(str(kernel.path)).name, "others": _others(kernel)})
    return Adoption(
        run_id=result.run_id,
        result_sha256=digest(run / RESULT),
        outcome=result.outcome,
        policy=result.policy.name if result.policy else None,
        forced=forced,
        op=kernel.manifest.op,
        op_sha256=kernel.op_sha256,
        kernel=None if alternative else near,
        alternative=alternative,
        mode=first.baseline if alternative else first.candidate,
        sites=list(dict.fromkeys(site.fqn for site in patched)),
        calls=calls,
        cells=[cell.cell for cell in cells],
        device=first.device.name if first.device else "CPU",
        environment=result.environment,
        workload=workload,
        workload_sha256=str(result.environment.get("workload_sha256") or ""),
        overrides=result.overrides,
    )


def _workload(result: Result) -> str:
    """The workload's place, as the run was given it; a run by `--repeat` was given none.

    Raises:
        UsageError: it is not known.
    """
    place = result.command[2] if result.command[:2] == ["e2e", "validate"] and len(result.command) > 2 else "-"
    if place.startswith("-"):
        raise UsageError(f"run {result.run_id} does not say where its workload is: adopt the run that it repeats")
    load_workload(place)  # a test that cannot be run is none
    return place


def _others(kernel: Kernel) -> list[str]:
    return [relative_name(str(kernel.path), other) for other in kernel.others]


def _sources(run: Path, kernel: Kernel) -> dict[str, bytes]:
    """As the run stored them.

    Raises:
        UsageError: they are not there, or not what was measured.
    """
    first = run / "kernel" / Path(str(kernel.path)).name
    others = [str(run / "kernel" / name) for name in _others(kernel)]
    try:
        if digest(first, others) != kernel.sha256:
            raise UsageError(f"{first} is not the kernel that was measured: it was edited after the run")
        paths = [first, *map(Path, others)]
        return {path.relative_to(run / "kernel").as_posix(): path.read_bytes() for path in paths}
    except OSError as error:
        raise UsageError(f"the run's copy of the kernel cannot be read: {error}") from error


def _write(folder: Path, files: dict[str, bytes]) -> None:
    if folder.exists():
        raise UsageError(f"{folder} is there already, and nothing is overwritten: remove it, or give another --out")
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    except OSError as error:
        raise EnvironmentFault(f"{folder}: cannot be written: {error.strerror}") from error


# ---- The two files


def _module(record: Adoption, name: str) -> str:
    what = f"PyTorch's own {record.alternative}" if record.kernel is None else f"{record.op} by {record.kernel.spec}"
    return _MODULE.format(
        what=_said(what),
        where=_said(", ".join(cell.title for cell in record.cells)),
        verdict=_said(record.outcome.upper() if record.outcome else "NO VERDICT"),
        run=_said(record.run_id),
        sha=record.result_sha256[:16],
        forced=""
        if record.forced is None
        else f"\n\nFORCED, although the run is not CONFIRMED: {_said(record.forced)}",
        name=name,
    )


def _test(record: Adoption, name: str) -> str:
    return _TEST.format(workload=_said(record.workload), device=_said(record.device), name=name)


def _said(text: str) -> str:
    """Inside a string of the written file: what comes from files must not end it."""
    return clean(text).replace("\\", "/").replace('"', "'")


def _identifier(text: str) -> str:
    name = re.sub(r"\W", "_", text)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"kernel_{name}"
