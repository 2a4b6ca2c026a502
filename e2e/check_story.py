"""What a check of a kernel by itself has to tell, as a story that the text report prints. Pure."""

from __future__ import annotations

from e2e.schema.check import CheckReport, DtypeCheck
from e2e.schema.evidence import OpCheck
from e2e.schema.words import Outcome
from e2e.story import Story, reason_line
from e2e.story_sections import Section, Table
from e2e.wording import ABSENT, clean, count, outcome_word, sanitized, small, span

_DECLINED_SHOWN = 6
_REASONS_SHOWN = 4


def tell(report: CheckReport) -> Story:
    """The story of a check."""
    op = report.kernel.manifest.op
    failing = next((item for item in report.dtypes if item.outcome is not None), None)
    where = f", {report.device.name}" if report.device else ""
    inputs = f"inputs captured in {report.captures}" if report.captures else "the op's own inputs"
    sections = [_dtypes(report), _first(report, failing), _declined(report)]
    return Story(
        tone="good" if report.outcome is None else "open" if report.outcome is Outcome.INCONCLUSIVE else "bad",
        outcome="PASSED" if report.outcome is None else outcome_word(report.outcome),
        subject=clean(f"{op} by {report.kernel.spec}{where}"),
        asked="tested",
        sentence=f"it is as right as PyTorch, within {report.error_ratio:g}x of PyTorch's own error against float64, "
        f"on {inputs}.",
        marks=("No workload was run: nothing is said of speed, nor of any model.",) if report.outcome is None else (),
        reasons=tuple(reason_line(reason) for reason in report.reasons[:_REASONS_SHOWN]),
        sections=tuple(section for section in sections if not section.is_empty),
        footer=_footer(report),
    )


def _dtypes(report: CheckReport) -> Section:
    header = ("dtype", "passed", "declined", "mutants caught", "PyTorch's error", "kernel's", "nearest to wrong")
    return Section("Inputs", Table(header, tuple(map(_row, report.dtypes))), facts=tuple(_facts(report)))


def _row(item: DtypeCheck) -> tuple[str, ...]:
    passed = sum(check.status == "passed" for check in item.inputs)
    declined = sum(check.status == "declined" for check in item.inputs)
    caught = sum(mutant.caught for mutant in item.mutants)
    nearest = nearest_to_wrong(item)
    verdict = [] if item.outcome is None else [outcome_word(item.outcome)]
    return (
        item.dtype,
        f"{passed} of {len(item.inputs)}" if item.inputs else ABSENT,
        str(declined),
        f"{caught} of {len(item.mutants)}" if item.mutants else ABSENT,
        small(nearest.error_baseline) if nearest else ABSENT,
        small(nearest.error_candidate) if nearest else ABSENT,
        ": ".join([*verdict, clean(nearest.label, 40)] if nearest else verdict),
    )


def nearest_to_wrong(item: DtypeCheck) -> OpCheck | None:
    """The input that is furthest beyond what is allowed, else nearest to it; None where no output was compared."""
    wrong = [check for check in item.inputs if check.status == "wrong"]
    compared = [check for check in item.inputs if check.error_candidate is not None]
    return max(wrong or compared, key=_excess, default=None)


def _excess(check: OpCheck) -> float:
    if check.error_candidate is None:  # not finite, or of another form
        return float("inf")
    return check.error_candidate / (check.allowed or 1.0)


def _facts(report: CheckReport) -> list[tuple[str, str]]:
    """What else was asked of the kernel, over all dtypes."""
    facts = []
    asked = [item.torch for item in report.dtypes if item.torch is not None]
    if asked:
        sound = sum(said.called is None and said.faked is None for said in asked)
        facts.append(("as an op", f"torch's opcheck passes in {sound} of {count(len(asked), 'dtype')}"))
    gradients = [item.gradients for item in report.dtypes if item.gradients is not None]
    if gradients:
        right = sum(found.status == "passed" for found in gradients)
        facts.append(("gradients", f"right in {right} of {count(len(gradients), 'dtype')}"))
    for tool in dict.fromkeys(ran.tool for item in report.dtypes for ran in item.sanitizers):
        facts.append((tool, sanitized([ran for item in report.dtypes for ran in item.sanitizers if ran.tool == tool])))
    repeats = [check.repeats for item in report.dtypes for check in item.inputs if check.repeats is not None]
    if repeats:
        same = "the same bits" if all(repeats) else f"other bits on {count(repeats.count(False), 'input')}"
        facts.append(("repeats", same))
    return facts


def _first(report: CheckReport, failing: DtypeCheck | None) -> Section:
    """What failed first, and how to see it again."""
    if report.outcome is None:
        return Section("")
    facts = [("reproduce", clean(report.again))]
    first = next((check for check in failing.inputs if check.status == "wrong"), None) if failing else None
    if failing is not None and first is not None:
        errors = f"error {small(first.error_candidate)}, allowed {small(first.allowed)}"
        facts[:0] = [
            ("input", clean(f"{first.label}: {first.dtype} {first.shape or 'scalar'}, strides {first.stride}")),
            ("found", clean(first.message or (errors if first.error_candidate is not None else str(first.code)))),
        ]
    return Section("What failed first", facts=tuple(facts))


def _declined(report: CheckReport) -> Section:
    """Inputs that the kernel did not take, once each."""
    lines: dict[str, list[str]] = {}
    for item in report.dtypes:
        for check in item.inputs:
            if check.status == "declined":
                lines.setdefault(f"{check.label} ({check.shape}): {check.message}", []).append(item.dtype)
    shown = [clean(f"{text} [{', '.join(dtypes)}]", 200) for text, dtypes in lines.items()][:_DECLINED_SHOWN]
    left = len(lines) - len(shown)
    return Section("Declined", lines=(*shown, f"and {left} more") if left > 0 else tuple(shown))


def _footer(report: CheckReport) -> tuple[str, ...]:
    packages = report.environment.get("packages") or {}
    versions = [f"{name} {packages[name]}" for name in ("torch", "triton", "apache-tvm-ffi") if name in packages]
    ran = f"{span(report.seconds)}, seed {report.seed}, method {report.method}"
    return (clean(", ".join([ran, *versions])),)
