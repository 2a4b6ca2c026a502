"""The Python interface: what the commands do, with records in place of text. No torch in the caller's process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e import registry, store
from e2e.errors import E2EError, UsageError
from e2e.protocols import Progress
from e2e.schema.check import CheckReport
from e2e.schema.result import Result
from e2e.schema.words import Outcome, Stage

if TYPE_CHECKING:
    import pandas as pd

    from e2e.gate import Gate

__all__ = [
    "E2EError",
    "Outcome",
    "Result",
    "check_kernel",
    "compare",
    "gate_result",
    "history",
    "load_result",
    "report",
    "validate",
]


def validate(
    workload: str | Path,
    kernel: str | Path | Sequence[str | Path],
    *,
    until: str = "verdict",
    op: str | None = None,
    settings: Mapping[str, Any] | None = None,
    policy: str | Path | None = None,
    device: str = "auto",
    budget_s: float | None = None,
    seed: int | None = None,
    out: str | Path = "results",
    trace: bool = True,
    quiet: bool = False,
) -> Result:
    """Run a workload with and without a kernel, and say what came of it; as `e2e validate`, which has the same options.

    Several kernels stand in the model together.
    `settings` are `--set`: dotted fields of the workload and their values. Progress goes to stderr unless `quiet`.
    An outcome is no exception, nor is a run that ended early: see `outcome`, `reasons` and `error` of the result.

    Raises:
        E2EError: nothing was run: a mistake in a file or option, or an environment that cannot run it.
    """
    from e2e.pipeline import validate as run
    from e2e.request import Request

    overrides = tuple(f"{field}={json.dumps(value)}" for field, value in (settings or {}).items())  # JSON is YAML
    kernels = [kernel] if isinstance(kernel, str | Path) else list(kernel)
    options = [
        *(("--kernel", spec) for spec in kernels),
        *(("--set", text) for text in overrides),
        ("--until", None if until == "verdict" else until),
        ("--op", op),
        ("--policy", policy),
        ("--device", None if device == "auto" else device),
        ("--budget", budget_s),
        ("--seed", seed),
        ("--out", None if str(out) == "results" else out),
    ]
    request = Request(
        workload=str(workload),
        kernels=tuple(map(str, kernels)),
        until=_stage(until),
        op=op,
        overrides=overrides,
        policy=None if policy is None else str(policy),
        device=device,
        budget_s=budget_s,
        seed=seed,
        out=Path(out),
        traces=trace,
        command=("e2e", "validate", str(workload), *_words(options), *([] if trace else ["--no-trace"])),
    )
    with _progress(quiet) as progress:
        return run(request, progress)


def _words(options: Sequence[tuple[str, object]]) -> list[str]:
    """Options as they are typed; those that are None are not."""
    return [word for name, value in options if value is not None for word in (name, str(value))]


def _stage(name: str) -> Stage:
    if name not in list(Stage):
        raise UsageError(f"until={name!r}: expected one of {', '.join(Stage)}")
    return Stage(name)


def check_kernel(
    kernel: str | Path,
    *,
    op: str | None = None,
    dtypes: Sequence[str] = (),
    device: str = "auto",
    seed: int | None = None,
    quiet: bool = False,
) -> CheckReport:
    """Is the kernel right, on its op's own inputs, without a workload? As `e2e check`; `outcome` is None if it is.

    Raises:
        E2EError: nothing was run.
    """
    from e2e.check import CheckRequest, check

    options = [("--op", op), *(("--dtype", dtype) for dtype in dtypes)]
    options += [("--device", None if device == "auto" else device), ("--seed", None if seed is None else str(seed))]
    request = CheckRequest(
        kernel=str(kernel),
        op=op,
        dtypes=tuple(dtypes),
        device=device,
        seed=seed,
        command=("e2e", "check", str(kernel), *_words(options)),
    )
    with _progress(quiet) as progress:
        return check(request, progress)


def load_result(run: str | Path) -> Result:
    """A stored run: its folder, its result.json, or its id under `results/`.

    Raises:
        E2EError: not a run, damaged, edited, or of another schema.
    """
    return store.load(run)


def gate_result(result: Result, policy: str | Path | None = None) -> Gate:
    """Judge a stored run again, as `e2e gate`: `code` is 0 for CONFIRMED alone, `text` says why.

    Raises:
        E2EError: no such policy, or evidence that cannot be judged.
    """
    from e2e.configuration import load_policy
    from e2e.gate import regate
    from e2e.surroundings import surroundings

    other = None if policy is None else load_policy(str(policy), heeds_waivers=True)
    return regate(result, other, surroundings(result.kernels), datetime.now(UTC).date())


def report(result: Result, style: str = "text") -> str:
    """A result as `text`, `md`, `html`, `json`, `junit` or `github`.

    Raises:
        E2EError: no such format.
    """
    return str(registry.load("reports", style).render(result))


def compare(first: Result, second: Result) -> str:
    """What moved between two runs of one workload, as `e2e compare` prints it.

    Raises:
        E2EError: they cannot be compared.
    """
    from e2e.comparison import compare as compare_runs
    from e2e.reports.text import printed

    return printed(compare_runs(first, second))


def history(folder: str | Path = "results") -> pd.DataFrame:
    """Every readable run of a folder, a row for each cell, in the order of time.

    Columns are the fields of `e2e.past_runs.Row`, with the speed-up as `ratio`, `lower_bound` and `upper_bound`; what
    is absent is None or NaN.

    Raises:
        E2EError: no such folder.
    """
    import pandas as pd

    from e2e.past_runs import Row, read

    bounds = {"ratio": "point_estimate", "lower_bound": "lower_bound", "upper_bound": "upper_bound"}
    rows = [
        {
            **row.model_dump(mode="json", exclude={"speedup"}),
            **{column: getattr(row.speedup, name, None) for column, name in bounds.items()},
        }
        for row in read(Path(folder)).rows
    ]
    columns = [name for name in Row.model_fields if name != "speedup"]
    frame = pd.DataFrame(rows, columns=[*columns, *bounds])
    return frame.assign(created=pd.to_datetime(frame["created"]))


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    from e2e.progress import for_people

    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open(os.devnull, "w", encoding="utf-8")) if quiet else sys.stderr
        yield stack.enter_context(contextlib.closing(for_people(stream)))
