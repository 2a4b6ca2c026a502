"""What a self-test has to tell, as a story that the text report prints. Pure."""

from __future__ import annotations

from e2e import wording
from e2e.errors import INTERRUPTED
from e2e.schema.selftest import Effect, SelftestReport
from e2e.story import Story
from e2e.story_sections import Section, Table
from e2e.trials import effect_name
from e2e.wording import clean, count, percent, span

_ROWS_SHOWN = 12


def tell(report: SelftestReport) -> Story:
    """The story of a self-test."""
    marks = [f"Overrides of the workload file: {', '.join(report.overrides)}"] if report.overrides else []
    if report.runs_done < report.runs_asked:
        ended = "It was interrupted after" if report.is_interrupted else "The time sufficed for"
        marks.append(f"{ended} {report.runs_done} of {count(report.runs_asked, 'run')}.")
    return Story(
        tone="bad" if report.faults else "open" if report.doubts or report.is_interrupted else "good",
        outcome=_headline(report),
        subject=clean(f"{report.workload}, {report.cell}, {report.device.name}"),
        asked="asked" if report.is_interrupted else "tested",
        sentence="e2e tells true from planted on this machine.",
        marks=tuple(map(clean, marks)),
        reasons=tuple(map(clean, [*report.faults, *report.doubts]))
        or ("everything planted was found as it should be",),
        sections=tuple(section for section in _sections(report) if not section.is_empty),
        footer=(clean(_footer(report)),),
    )


def _headline(report: SelftestReport) -> str:
    if report.is_interrupted:
        return f"INTERRUPTED (exit code {INTERRUPTED})"
    return "FAULT IN E2E" if report.faults else "NOT SHOWN" if report.doubts else "PASSED"


def _sections(report: SelftestReport) -> list[Section]:
    return [_effects(report), _noise(report), _resolvable(report), _catches(report), _alarms(report)]


def _effects(report: SelftestReport) -> Section:
    effects = [report.identical] if report.identical else []
    effects += sorted(report.effects, key=lambda effect: -effect.planted)
    header = ("planted", "truth", "measured", "truth inside", "confirmed", "refuted", "inconclusive", "")
    lines = (
        ("ratios are slower / faster, as in every report; truth and measured are means over runs",) if effects else ()
    )
    return Section("Planted times", Table(header, tuple(map(_effect_row, effects))), lines=lines)


def _effect_row(effect: Effect) -> tuple[str, ...]:
    return (
        effect_name(effect.planted),
        f"{effect.true_speedup:.4f}x",
        f"{effect.mean_estimate:.4f}x",
        f"{effect.covered} of {effect.runs}",
        str(effect.confirmed),
        str(effect.refuted),
        str(effect.inconclusive),
        f"other: {effect.other}" if effect.other else "",
    )


def _noise(report: SelftestReport) -> Section:
    noise = report.noise
    if noise is None:
        return Section("Noise floor")
    between = f"{percent(noise.worker_sd, digits=2)} (standard deviation of medians)"
    facts = [
        ("processes", f"identical code differs by {between} from one process to the next"),
        ("blocks", f"by {percent(noise.block_sd, digits=2)} from one mirrored block to the next"),
        ("interval", f"+- {percent(noise.half_width, digits=2)} from {count(noise.workers, 'process', 'processes')}"),
    ]
    return Section("Noise floor", facts=tuple(facts))


def _resolvable(report: SelftestReport) -> Section:
    rows = tuple((f"{row.minutes:g}", str(row.workers), percent(row.effect, digits=2), "") for row in report.resolvable)
    lines = ("found in nine runs of ten, by timing alone; compiling and checking come on top",) if rows else ()
    title = "Smallest effect that a budget resolves"
    return Section(title, Table(("minutes", "processes", "effect", ""), rows), lines=lines)


def _catches(report: SelftestReport) -> Section:
    rows = []
    for op in dict.fromkeys(catch.op for catch in report.catches):
        own = [catch for catch in report.catches if catch.op == op]
        wrong = [catch for catch in own if catch.kind == "wrong"]
        honest = [catch for catch in own if catch.kind == "honest"]
        caught = f"{sum(catch.is_right for catch in wrong)} of {len(wrong)}"
        accused = f"{sum(not catch.is_right for catch in honest)} of {len(honest)}"
        missed = ", ".join(catch.kernel for catch in own if not catch.is_right)
        rows.append((op, caught, accused, clean(missed)))
    lines = (f"not in this workload: {', '.join(report.absent_ops)}",) if report.absent_ops else ()
    header = ("op", "wrong ones caught", "honest ones accused", "")
    return Section("Planted kernels", Table(header, tuple(rows)), lines=lines)


def _alarms(report: SelftestReport) -> Section:
    rows = [(str(alarm.code), f"{alarm.runs} of {report.runs_done}", "") for alarm in report.alarms[:_ROWS_SHOWN]]
    lines = () if rows or not report.runs_done else ("none",)
    return Section("Flags raised over identical code", Table(("flag", "runs", ""), tuple(rows)), lines=lines)


def _footer(report: SelftestReport) -> str:
    facts = [span(report.seconds), f"seed {report.seed}", f"method {report.method}", f"policy {report.policy.name}"]
    facts.append(count(report.device.count_threads, "thread"))
    facts += [f"step {wording.duration(report.step_s)}"] if report.step_s is not None else []
    return ", ".join(facts)
