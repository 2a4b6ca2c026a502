"""What a run has to tell, decided once; every report only renders it. Pure: Result in, Story out."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

from e2e import wording
from e2e.attempts import ops_of
from e2e.errors import INTERNAL_FAULT, INTERRUPTED, EnvironmentFault, UsageError
from e2e.schema.kernel import PATCH, Kernel
from e2e.schema.result import Attempts, CellResult, Result, Resumption
from e2e.schema.verdict import Reason
from e2e.schema.words import Outcome, ReasonCode, Stage
from e2e.signing import sentences
from e2e.story_details import (
    attribution_section,
    block_sections,
    deciding_row,
    depth_section,
    environment_section,
    loss_sections,
    memory_section,
    mutants_section,
    numerics_section,
    reproduce_section,
    roofline_section,
    settings_sections,
    sites_section,
    win_section,
)
from e2e.story_drift import drift_section
from e2e.story_facts import package
from e2e.story_sections import Section, cells_section, detail_sections, first_sections, kernels_section, next_section
from e2e.turning import turning_points
from e2e.wording import LABELS, clean, count, outcome_word, percent, span

Tone = Literal["good", "bad", "open"]

_ERRORS = {
    UsageError.exit_code: "USAGE ERROR",
    EnvironmentFault.exit_code: "CANNOT RUN HERE",
    INTERNAL_FAULT: "FAULT IN E2E",
    INTERRUPTED: "INTERRUPTED",
}
_TONES: dict[Outcome, Tone] = {
    Outcome.CONFIRMED: "good",
    Outcome.REFUTED: "bad",
    Outcome.INCORRECT: "bad",
    Outcome.FAILED: "bad",
}
_EXTERNAL = (
    "EXTERNAL, TRUST LIMITED: a program of the user's own ran and timed the step; e2e ordered its processes, and "
    "compared what they handed back."
)
_CLAIMS = {"any": "one or more", "all": "each"}
_REASONS_SHOWN = 8
_SAID_ELSEWHERE = (ReasonCode.RANDOM_WEIGHTS, ReasonCode.CANNOT_SEE)
"""One is a mark, the other a fact; both are on the first screen anyway."""
_POLICY_WORDS = {
    "name": ("policy", ""),
    "looks": ("looks", ""),
    "level": ("confidence level", ""),
    "budgets.cell_s": ("budget", " s"),
}
"""Label and unit of every policy field that the command line can change."""
_PACKAGES = ("torch", "transformers", "triton", "apache-tvm-ffi")


@dataclass(frozen=True)
class Story:
    """A run in plain words."""

    tone: Tone
    outcome: str
    """`REFUTED: matched by PyTorch`."""
    subject: str
    """`llama-infer, prefill 8 x 2048 bfloat16, NVIDIA H200`."""
    asked: Literal["tested", "asked"]
    """Whether the sentence was tested, or only asked because the run ended before."""
    sentence: str | None
    """What was tested, as a statement that is true or not."""
    marks: tuple[str, ...]
    """What every reader must know before believing a number: overrides, random weights, an early end."""
    reasons: tuple[str, ...]
    sections: tuple[Section, ...]
    footer: tuple[str, ...]
    """Run and environment."""
    signing: tuple[tuple[str, str], ...] = ()
    """Label and sentence: what the person who signs must know."""


def tell(result: Result, *, is_full: bool = False) -> Story:
    """The story of a result; the full one has every block, input, site and setting in it."""
    deciding = deciding_cell(result)
    return Story(
        tone=_TONES.get(result.outcome, "open") if result.outcome else "open",
        outcome=headline(result),
        subject=_subject(result, deciding),
        asked="tested" if result.error is None else "asked",
        sentence=_sentence(result, deciding),
        marks=_marks(result),
        reasons=_reasons(result),
        sections=_sections(result, deciding, is_full=is_full),
        footer=_footer(result, deciding),
        signing=sentences(result, deciding),
    )


def deciding_cell(result: Result) -> CellResult | None:
    """The cell that the top-level blocks repeat; the first one where none matches."""
    same = [cell for cell in result.cells if cell.verdict.latency == result.latency] or result.cells
    told = (result.outcome, result.label)
    first = same[0] if same else None
    return next((cell for cell in same if (cell.verdict.outcome, cell.verdict.label) == told), first)


def headline(result: Result) -> str:
    """`REFUTED: matched by PyTorch`."""
    if result.error is not None:
        return f"{_ERRORS[result.error.code]} (exit code {result.error.code})"
    label = LABELS[result.label] if result.label else ""
    if result.outcome is None:
        passed = f"{result.stage.upper()} PASSED" if result.stage else "NOTHING WAS FINISHED"
        return f"{passed}{label and f': {label}'}"
    return f"{outcome_word(result.outcome)}{label and f': {label}'}"


def _subject(result: Result, deciding: CellResult | None) -> str:
    parts = [result.workload.name] if result.workload else []
    if deciding is not None:
        parts.append(_place(result, deciding))
        parts += [deciding.evidence.device.name] if deciding.evidence.device else []
    return clean(", ".join(parts) or result.run_id)


def _place(result: Result, deciding: CellResult) -> str:
    """The cell, or how many there are."""
    cells = len(result.cells)
    return deciding.cell.title if cells == 1 else count(cells, f"{deciding.cell.step} cell")


def _sentence(result: Result, deciding: CellResult | None) -> str | None:
    if not result.kernels or result.workload is None:
        return None
    what = " and ".join(map(_named, result.kernels))
    one = len(result.kernels) == 1
    where = f"{_place(result, deciding)} of {result.workload.name}" if deciding else result.workload.name
    asked = deciding.evidence.stage_asked if deciding else Stage.VERDICT
    if asked is Stage.BUILD:
        return clean(f"{what} {'builds' if one else 'build'}.")
    if asked is Stage.CHECK or result.policy is None:
        passes = "builds and gives" if one else "build and give together"
        return clean(f"{what} {passes} right outputs in {where}.")
    opponent, margin = (
        wording.opponent(result.policy.decides, is_command=result.is_command),
        percent(result.policy.margin),
    )
    makes = "makes" if one else "together make"
    many = len(result.cells) > 1
    if many:
        where = f"{_CLAIMS[result.policy.wins]} of {where}"
    if result.policy.objective == "memory":
        rules = result.policy.memory
        saving = f"need at least {percent(rules.margin)} less memory than {opponent}"
        return clean(f"{what} {makes} {where} {saving}, and no more than {percent(rules.noninferiority)} slower.")
    none_loses = f", and none more than {margin} slower" if many else ""
    return clean(f"{what} {makes} {where} at least {margin} faster than {opponent}{none_loses}.")


def _named(kernel: Kernel) -> str:
    if kernel.manifest.kind == "patch":
        return f"the patch {kernel.spec.removeprefix(PATCH)}"
    return f"{kernel.manifest.op} by {kernel.spec}"


def _marks(result: Result) -> tuple[str, ...]:
    marks = [_EXTERNAL] if result.is_command else []
    if result.random_weights or any(cell.evidence.random_weights for cell in result.cells):
        marks.append("RANDOM WEIGHTS: time and memory are real; drift and outputs mean little.")
    models = [cell.evidence.model for cell in result.cells if cell.evidence.model is not None]
    if drawn := {name for model in models for name in model.drawn}:
        shown = f"{min(drawn)} and {len(drawn) - 1} more" if len(drawn) > 1 else min(drawn)
        marks.append(clean(f"WEIGHTS MISSING from the checkpoint, and drawn: {shown}."))
    if uncompiled := {name for model in models for name in model.uncompiled}:
        named = "the model" if "" in uncompiled else wording.count(len(uncompiled), "module")
        marks.append(f"TORCH.COMPILE TAKEN OFF {named}: arms are compiled in modes of their own.")
    if any(model.is_synthetic for model in models):
        marks.append("SYNTHETIC DATA: inputs were drawn, not read; routing and drift mean little.")
    if result.overrides:
        pairs = ", ".join(f"{key}={value}" for key, value in result.overrides.items())
        marks.append(clean(f"Overrides of the workload file: {pairs}"))
    chosen = _chosen(result)
    if chosen:
        marks.append(clean(f"Chosen on the command line: {', '.join(chosen)}"))
    if result.repeats is not None:
        marks.append(clean(f"Repeats {result.repeats} in a size planned beforehand; the two are never merged."))
    if result.again is not None:
        marks.append(clean(f"Measures {result.again} again in today's environment; `e2e compare` says what moved."))
    marks += [_resumption(item, len(result.cells)) for item in result.resumed]
    if result.attempts is not None and result.attempts.number > 1:
        marks.append(_attempt(result, result.attempts))
    if result.outcome is not None and result.stage is not None and result.stage is not Stage.VERDICT:
        marks.append(f"Ended after the stage `{result.stage}`: what follows it was not measured.")
    if result.outcome is not None and result.stage is None:
        marks.append("Ended before the first stage was finished.")
    return tuple(marks)


def _chosen(result: Result) -> list[str]:
    """What the command line changed of the policy, beside what the policy itself says; and the seed."""
    found = []
    for name, value in result.policy_overrides.items() if result.policy else ():
        if name in _POLICY_WORDS:
            label, unit = _POLICY_WORDS[name]
            now = functools.reduce(getattr, name.split("."), result.policy)
            found.append(f"{label} {_plain(now)}{unit} instead of {_plain(value)}{unit}")
    origins = [cell.evidence.origin for cell in result.cells if cell.evidence.origin is not None]
    return [*found, f"seed {result.seed}"] if any(origin.seed_chosen for origin in origins) else found


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _attempt(result: Result, attempts: Attempts) -> str:
    op = ops_of(result) if result.kernels else "this op"
    where = result.workload.name if result.workload else "this workload"
    said = f"Attempt {attempts.number} of {op} on {where}; of these {attempts.confirmed} CONFIRMED."
    if (last := attempts.previous) is not None:
        at = f" at {wording.ratio(last.ratio)}" if last.ratio is not None else ""
        said += f" The one before, {last.run}, ended {outcome_word(last.outcome)}{at}."
    return clean(said)


def _resumption(item: Resumption, cells: int) -> str:
    """`Resumed 2026-12-01T10:00:00+00:00, with stage screen and 3 verdict workers complete; ...`."""
    parts = [f"stage {item.stage}"] if item.stage else []
    parts += [count(item.workers_finished, "verdict worker")] if item.workers_finished else []
    where = f" at cell {item.cell + 1}" if cells > 1 else ""
    done = " and ".join(parts) or "nothing of the cell"
    return f"Resumed {item.at}{where}, with {done} complete; what was half done was thrown away."


def _reasons(result: Result) -> tuple[str, ...]:
    lines = [clean(result.error.message)] if result.error else []
    reasons = [reason for reason in result.reasons if reason.code not in _SAID_ELSEWHERE]
    lines += [reason_line(reason) for reason in reasons[:_REASONS_SHOWN]]
    left = len(reasons) - _REASONS_SHOWN
    return (*lines, f"and {left} more in result.json") if left > 0 else tuple(lines)


def reason_line(reason: Reason) -> str:
    """`message (kernels/a.cu:12, site model.norm) [op_error_exceeded]`."""
    where = reason.where
    place = f"{where.file}:{where.line}" if where.file and where.line else where.file
    rest = [
        f"{name} {getattr(where, name)}"
        for name in ("site", "shape", "dtype", "parameter", "position")
        if getattr(where, name)
    ]
    inside = ", ".join([place, *rest] if place else rest)
    return clean(f"{reason.message}{inside and f' ({inside})'} [{reason.code}]")


def _sections(result: Result, deciding: CellResult | None, *, is_full: bool) -> tuple[Section, ...]:
    """The first screen, then details; the deciding cell first."""
    many = len(result.cells) > 1
    sections = [cells_section(result)] if many else []
    ordered = sorted(result.cells, key=lambda cell: cell is not deciding)
    for cell in ordered:
        prefix = f"{cell.cell.title}: " if many else ""
        main = deciding_row(cell, result.policy)
        speed, evidence = first_sections(result, cell, prefix, is_deciding=cell is deciding)
        own = [speed]
        if is_full:
            own += [win_section(result, cell, prefix), roofline_section(cell.evidence, prefix)]
            own += [attribution_section(cell, row, prefix) for row in cell.verdict.latency.against]
            own += block_sections(cell, result.policy, prefix)
        own += [evidence]
        if cell is deciding:
            turns = Section("What would change this verdict", lines=turning_points(result, cell))
            own += [kernels_section(result), next_section(result), turns]
        own += [] if is_full or main is None else [attribution_section(cell, main, prefix)]
        own += detail_sections(cell, prefix)
        own += _evidence_in_full(cell, prefix) if is_full else []
        sections += own if cell is deciding else [replace(section, cell=cell.cell.title) for section in own]
    sections += [] if ordered else [next_section(result)]
    if is_full:
        sections += [reproduce_section(result), environment_section(result), *settings_sections(result)]
    return tuple(section for section in sections if not section.is_empty)


def _evidence_in_full(cell: CellResult, prefix: str) -> list[Section]:
    return [
        drift_section(cell.evidence, prefix),
        memory_section(cell.evidence, prefix),
        depth_section(cell.evidence.model_check, prefix),
        *loss_sections(cell.evidence.training, prefix),
        numerics_section(cell.evidence.op_checks, prefix),
        mutants_section(cell, prefix),
        sites_section(cell.evidence.engagement, prefix),
    ]


def _footer(result: Result, deciding: CellResult | None) -> tuple[str, ...]:
    run = f"run {result.run_id}, {span(result.seconds)}, seed {result.seed}, method {result.method}"
    if result.policy is not None:
        run += f", policy {result.policy.name} (margin {percent(result.policy.margin)})"
    device = deciding.evidence.device if deciding else None
    facts = [f"{device.name} ({count(device.count_threads, 'thread')})"] if device else []
    facts += [f"{name} {found}" for name in _PACKAGES if (found := package(result, name))]
    facts += [str(result.environment[key]) for key in ("platform",) if result.environment.get(key)]
    return (clean(run), clean(", ".join(facts))) if facts else (clean(run),)
