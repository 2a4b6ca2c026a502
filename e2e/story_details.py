"""The parts of a full story, for reports without a first screen to keep free: every block, input, site and setting."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, cast

from e2e import stats
from e2e.attribution import attribution
from e2e.figures import Chart, Ink, Line, Mark, Strip, amount_axis, error_axis, level_axis, ratio_axis
from e2e.reproduction import NAME, script
from e2e.schema.evidence import Engagement, Evidence, ModelCheck, OpCheck, Segment, TrainingCheck
from e2e.schema.policy import Policy
from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import Against
from e2e.story_sections import Section, Table
from e2e.wording import ABSENT, arm, clean, count, duration, percent, ratio, size, small

_BLOCKS_SHOWN = 200
_INPUTS_UNFOLDED = 16
_LABEL = 70
_NOTE = 120
_MICRO = 1e6
_IN_THE_STEP = "what the op costs in the step and not alone (caches, neighbours, launches)"


def win_section(result: Result, cell: CellResult, prefix: str) -> Section:
    """The author's ratio, the op's alone, and the step's: where a win goes."""
    against = cell.verdict.latency.against
    claimed = result.claim.claimed if result.claim else None
    found: list[tuple[str, str, float | None]] = []
    if claimed is not None:
        found.append(("its author's claim", claimed.against, claimed.speedup))
    for alone in (cell.evidence.isolated, *cell.evidence.isolated_others):
        if alone is None or alone.candidate_s <= 0:
            continue
        what = "the op alone" if alone.kernel is None else f"{clean(alone.kernel, _LABEL)}, its op alone"
        found.append((what, "the model's own module", alone.eager_s / alone.candidate_s))
        if alone.alternative is not None and alone.alternative_s is not None:
            found.append((what, alone.alternative, alone.alternative_s / alone.candidate_s))
        cold = alone.candidate_cold_s
        if cold and alone.eager_cold_s is not None:
            found.append((f"{what}, cold", "the model's own module", alone.eager_cold_s / cold))
        if cold and alone.alternative is not None and alone.alternative_cold_s is not None:
            found.append((f"{what}, cold", alone.alternative, alone.alternative_cold_s / cold))
    shipped_first = sorted(against, key=lambda row: row.opponent != "as_shipped")
    found += [("the whole step", arm(row.arm), row.speedup.point_estimate) for row in shipped_first]
    known = [value for *_, value in found if value]
    if len(known) < 2:
        return Section("")
    axis = ratio_axis(known)
    marks = tuple(
        (Mark("bar", value, "kernel" if what == "the whole step" else "control", lower=1.0),) if value else ()
        for what, _, value in found
    )
    rows = tuple((what, ratio(value), clean(versus, _LABEL)) for what, versus, value in found)
    table = Table(("speed-up of", "ratio", "against"), rows, Strip("from the op alone to the step", axis, marks))
    return Section(f"{prefix}From the op alone to the step", table)


def roofline_section(evidence: Evidence, prefix: str) -> Section:
    """How near each way to compute the op comes to what this device can do at most."""
    rows, marks, lines = [], [], []
    for alone in (evidence.isolated, *evidence.isolated_others):
        limit = alone.roofline if alone is not None else None
        if alone is None or limit is None or limit.least_s <= 0:
            continue
        whose = f", {clean(alone.kernel, 40)}" if alone.kernel is not None else ""
        ways = [("the model's own module", alone.eager_s, "pytorch"), ("the kernel", alone.candidate_s, "kernel")]
        if alone.alternative is not None and alone.alternative_s is not None:
            ways.insert(1, (clean(alone.alternative, 40), alone.alternative_s, "pytorch"))
        for name, seconds, ink in ways:
            share = limit.least_s / seconds if seconds > 0 else 0.0
            rows.append((f"{name}{whose}", duration(seconds, digits=3), percent(share, digits=2)))
            marks.append((Mark("bar", share, cast(Ink, ink)), Mark("limit", 1.0, "open")))
        products = "its products could not be counted" if limit.flops is None else f"{limit.flops:.3g} FLOP in products"
        copied, multiplied = limit.copy_bytes_per_s / 1e9, limit.matmul_flops_per_s / 1e12
        rates = f"{copied:,.0f} GB/s copied, {multiplied:.3g} TFLOP/s in products"
        lines.append(
            f"a call{whose} moves {size(limit.bytes)}, with {products}; this device was seen to do {rates}: "
            f"at least {duration(limit.least_s, digits=3)}"
        )
    lines += ["above 100 %: its tensors were in a cache"] if any(own[0].value > 1 for own in marks) else []
    axis = amount_axis([1.0, *(own[0].value for own in marks)])
    strip = Strip("share of the device's best", axis, tuple(marks))
    table = Table(("op alone, warm", "time", "of the device's best"), tuple(rows), strip)
    return Section(f"{prefix}Roofline of the op", table, lines=tuple(lines)) if rows else Section("")


def attribution_section(cell: CellResult, row: Against, prefix: str) -> Section:
    """Why the step changed by what it did against that opponent: microseconds, line by line."""
    lines = attribution(cell.evidence, row)
    if not lines:
        return Section("")
    rows, marks, at = [], [], 0.0
    for line in lines:
        change = line.microseconds_per_step
        ink: Ink = "control" if line.cause == "unexplained" else "good" if change < 0 else "bad"
        rows.append((clean(line.what, _LABEL), f"{change:+,.1f} us", clean(line.note, _NOTE)))
        marks.append((Mark("bar", at + change, ink, lower=at),))
        at += change
    rows.append(("the step", f"{at:+,.1f} us", ""))
    marks.append((Mark("bar", at, "kernel", lower=0.0),))
    ends = [mark.value for own in marks for mark in own]
    axis = level_axis(ends, lambda value: f"{value:+,.0f}", guides=((0.0, "0 us"),))
    strip = Strip("change of the step, from the op alone to what was observed", axis, tuple(marks))
    table = Table(("part", "change of the step", ""), tuple(rows), strip)
    bounds = (row.speedup.upper_bound, row.speedup.lower_bound)
    low, high = (_MICRO * row.arm_step_s * (1 / bound - 1) for bound in bounds)
    said = f"interval of the step's change: {low:+,.0f} to {high:+,.0f} us"
    return Section(
        f"{prefix}Where it went, against {arm(row.arm)}", table, lines=(said, *_traced(cell.evidence, row.arm))
    )


def _traced(evidence: Evidence, name: str) -> Iterator[str]:
    """What the lines rest on, and what that cannot show."""
    seen = next((item for item in evidence.trace_differences if item.arm == name), None)
    if seen is None:
        yield f"{_IN_THE_STEP} is unexplained"
        return
    steps = (duration(seen.candidate_step_s), duration(seen.step_s))
    yield (
        f"from profiled steps of {steps[0]} and {steps[1]} (without the kernel), which differ by up to "
        f"{duration(seen.spread_s, digits=2)} among themselves; what profiling adds is unexplained"
    )
    if seen.op_s is not None and seen.candidate_op_s is not None:
        mine, theirs = (
            f"{duration(op_s, digits=3)} ({percent(op_s / step_s, digits=2)} of it)"
            for op_s, step_s in ((seen.candidate_op_s, seen.candidate_step_s), (seen.op_s, seen.step_s))
        )
        yield f"in them the op takes {mine}, and {theirs} without the kernel"
    elif not any(change.cause == "op" for change in seen.changes):
        yield "the traces do not show which part of the step is the op"


# ---- Blocks


def block_sections(cell: CellResult, policy: Policy | None, prefix: str) -> Iterator[Section]:
    """The deciding comparison, block by block, as a ratio and as the times behind it; then every block's numbers."""
    row, mine = deciding_row(cell, policy), cell.evidence.candidate
    if row is None or mine is None:
        return
    whole = [segment for segment in cell.evidence.segments if segment.seconds > 0 and segment.steps > 0]
    timed = [segment for segment in whole if segment.phase == "verdict" and segment.arm in (row.arm, mine)]
    contrasts = stats.block_contrasts(timed, arm=mine, other=row.arm)
    if not contrasts:
        return
    blocks = _blocks(timed, (row.arm, mine))
    ratios = [blocks[place][row.arm] / blocks[place][mine] for place in blocks]
    bands = _bands(blocks)
    interval = (row.speedup.lower_bound, row.speedup.upper_bound)
    axis = ratio_axis([*ratios, *interval], margin=policy.margin if policy else None)
    said = f"Opponent's time over the kernel's in each of {count(len(blocks), 'block')}, worker by worker"
    line = Line("a block's ratio", "kernel", tuple(enumerate(ratios)))
    chart = Chart(said, axis, (line,), bands, interval)
    workers = _workers(timed, contrasts, row.arm, mine)
    yield Section(f"{prefix}Block by block", workers, lines=(f"the opponent is {arm(row.arm)}",), figure=chart)
    lines = (
        Line(arm(row.arm), "pytorch", tuple(enumerate(values[row.arm] for values in blocks.values()))),
        Line("with the kernel", "kernel", tuple(enumerate(values[mine] for values in blocks.values()))),
    )
    times = [value for line in lines for _, value in line.points]
    steps = Chart("Step time in each block, worker by worker", level_axis(times, duration), lines, bands)
    yield Section(f"{prefix}Every block", _every_block(blocks, row.arm, mine), figure=steps, is_folded=True)


def deciding_row(cell: CellResult, policy: Policy | None) -> Against | None:
    """The comparison that the outcome rests on; the first one where none is named."""
    rows = cell.verdict.latency.against
    decides = policy.decides if policy else None
    return next((row for row in rows if row.opponent == decides), rows[0] if rows else None)


_Blocks = dict[tuple[int, int], dict[str, float]]


def _blocks(segments: Sequence[Segment], arms: tuple[str, str]) -> _Blocks:
    """Median step of both arms by worker and block, in order; blocks that lack one are left out."""
    steps: dict[tuple[int, int], dict[str, list[float]]] = {}
    for segment in segments:
        own = steps.setdefault((segment.worker, segment.block), {})
        own.setdefault(segment.arm, []).append(segment.seconds / segment.steps)
    return {
        place: {name: median(values) for name, values in own.items()}
        for place, own in sorted(steps.items())
        if own.keys() == set(arms)
    }


def _bands(blocks: _Blocks) -> tuple[tuple[str, int, int], ...]:
    places: dict[int, list[int]] = {}
    for place, (worker, _) in enumerate(blocks):
        places.setdefault(worker, []).append(place)
    return tuple((str(worker), own[0], own[-1]) for worker, own in places.items())


def _workers(timed: Sequence[Segment], contrasts: dict[int, list[float]], other: str, mine: str) -> Table:
    rows = []
    for worker, values in contrasts.items():
        arms = [[s for s in timed if s.worker == worker and s.arm == name] for name in (other, mine)]
        steps = [duration(stats.step_seconds(own, own[0].arm)) for own in arms]
        ratio_text = f"{math.exp(stats.worker_estimate(values)):.4f}x"
        rows.append((str(worker), str(len(values)), *steps, ratio_text, *map(_drift, arms)))
    header = ("worker", "blocks", "PyTorch", "kernel", "ratio", "PyTorch's drift", "kernel's drift")
    return Table(header, tuple(rows))


def _drift(segments: Sequence[Segment]) -> str:
    """From the first half of a worker's blocks to the second."""
    return f"{stats.drift(segments) * 100:+.2f} %" if len({segment.block for segment in segments}) > 1 else ABSENT


def _every_block(blocks: _Blocks, other: str, mine: str) -> Table:
    rows = [
        (str(worker), str(block), duration(own[other]), duration(own[mine]), f"{own[other] / own[mine]:.4f}x")
        for (worker, block), own in blocks.items()
    ]
    left = len(rows) - _BLOCKS_SHOWN
    more = [(f"and {left} more in samples.csv", "", "", "", "")] if left > 0 else []
    return Table(("worker", "block", "PyTorch", "kernel", "ratio"), (*rows[:_BLOCKS_SHOWN], *more))


# ---- Numerics and sites


def numerics_section(checks: Sequence[OpCheck], prefix: str) -> Section:
    """Every input of the op check: the kernel's error beside PyTorch's own, and the largest that would have passed."""
    rows, marks = [], []
    for check in checks:
        errors = (check.error_candidate, check.error_baseline, check.allowed)
        what = f"{check.label}: {check.site}" if check.site else check.label
        said = check.status if check.code is None else f"{check.status} [{check.code}]"
        rows.append((clean(f"{what}, {check.shape} {check.dtype}", 120), *map(small, errors), said))
        marks.append(tuple(_error_marks(check)))
    known = [mark.value for own in marks for mark in own]
    strip = Strip("errors: kernel, PyTorch and the most allowed", error_axis(known), tuple(marks)) if known else None
    header = ("input", "kernel's error", "PyTorch's", "allowed", "")
    is_long = len(rows) > _INPUTS_UNFOLDED
    return Section(f"{prefix}Errors of the op, input by input", Table(header, tuple(rows), strip), is_folded=is_long)


def _error_marks(check: OpCheck) -> Iterator[Mark]:
    if check.allowed is not None:
        yield Mark("limit", check.allowed, "open")
    if check.error_baseline is not None:
        yield Mark("dot", check.error_baseline, "pytorch")
    if check.error_candidate is not None:
        yield Mark("dot", check.error_candidate, "bad" if check.status == "wrong" else "kernel")


def depth_section(check: ModelCheck | None, prefix: str) -> Section:
    """The error of hidden states, layer by layer: where it comes in, and whether it grows."""
    rows, marks = [], []
    for layer in check.depth if check is not None else ():
        mine, theirs = layer.error_candidate, layer.error_baseline
        over = mine / theirs if mine is not None and theirs > 0 else None
        rows.append((clean(layer.layer, _LABEL), small(mine), small(theirs), ratio(over)))
        dots = [Mark("dot", theirs, "pytorch")] + ([Mark("dot", mine, "kernel")] if mine is not None else [])
        marks.append(tuple(dots))
    if not rows:
        return Section("")
    strip = Strip("errors of hidden states", error_axis([dot.value for own in marks for dot in own]), tuple(marks))
    table = Table(("behind the layer", "kernel's error", "PyTorch's", "ratio"), tuple(rows), strip)
    return Section(f"{prefix}Drift by depth", table, is_folded=len(rows) > _INPUTS_UNFOLDED)


def loss_sections(check: TrainingCheck | None, prefix: str) -> Iterator[Section]:
    """Losses of consecutive training steps, both arms on the same data."""
    for path in check.paths if check is not None else ():
        pairs = list(zip(path.losses, path.losses_candidate, strict=False))
        if not pairs:
            continue
        rows = tuple(
            (str(step), f"{theirs:.6g}", ABSENT if mine is None else f"{mine:.6g}", small(_apart(mine, theirs)))
            for step, (theirs, mine) in enumerate(pairs)
        )
        lines = (
            Line("PyTorch", "pytorch", tuple(enumerate(theirs for theirs, _ in pairs))),
            Line(
                "with the kernel", "kernel", tuple((n, mine) for n, (_, mine) in enumerate(pairs) if mine is not None)
            ),
        )
        axis = level_axis([value for line in lines for _, value in line.points], lambda value: f"{value:.4g}")
        chart = Chart(f"Loss of {count(len(pairs), 'step')} of {path.optimizer}, step by step", axis, lines, ())
        said = f"{small(path.apart)} apart at most; allowed are {small(path.allowed)}"
        table = Table(("step", "PyTorch", "kernel", "apart"), rows)
        yield Section(f"{prefix}Loss path, {path.optimizer}", table, lines=(said,), figure=chart)


def _apart(mine: float | None, theirs: float) -> float | None:
    return None if mine is None else abs(mine - theirs)


def memory_section(evidence: Evidence, prefix: str) -> Section:
    """What torch allocates in the course of one profiled step."""
    inks: dict[str | None, Ink] = {evidence.baseline: "pytorch", evidence.candidate: "kernel"}
    seen = [record for record in evidence.traces if record.memory_bytes and record.arm in inks]
    if not seen:
        return Section("")
    names = {record.arm: "with the kernel" if record.arm == evidence.candidate else arm(record.arm) for record in seen}
    lines = tuple(
        Line(names[record.arm], inks[record.arm], tuple(enumerate(map(float, record.memory_bytes)))) for record in seen
    )
    axis = level_axis([0.0, *(value for line in lines for _, value in line.points)], lambda value: size(round(value)))
    rows = []
    for record in seen:
        most = max(record.memory_bytes)
        place = record.memory_bytes.index(most) / len(record.memory_bytes)
        rows.append((names[record.arm], size(most), percent(place, digits=2), size(record.memory_bytes[-1])))
    header = ("arm", "most", "after so much of the step", "at its end")
    said = "beyond what is allocated when a step begins; of one profiled step"
    chart = Chart("Memory allocated by torch from the beginning of a step to its end", axis, lines, ())
    return Section(f"{prefix}Memory over the step", Table(header, tuple(rows)), lines=(said,), figure=chart)


def mutants_section(cell: CellResult, prefix: str) -> Section:
    """Wrong kernels made on purpose, put through the same check."""
    named = [(f"{m.name} (for {m.kernel})" if m.kernel else m.name, m.caught) for m in cell.evidence.mutants]
    rows = tuple((clean(name, _LABEL), "caught" if caught else "NOT CAUGHT") for name, caught in named)
    return Section(f"{prefix}Wrong kernels made on purpose", Table(("kernel", ""), rows), is_folded=True)


def sites_section(seen: Engagement | None, prefix: str) -> Section:
    """Every place where the op happens, and whether the kernel ran there."""
    rows = (
        []
        if seen is None
        else [
            (
                clean(site.fqn, _LABEL),
                clean(site.owner, 40),
                clean(", ".join(f"{name} {value}" for name, value in site.dims.items()), _LABEL),
                str(site.calls),
                clean(f"{site.status}{f': {site.reason}' if site.reason else ''}", 120),
            )
            for site in seen.sites
        ]
    )
    table = Table(("site", "module", "dimensions", "calls", ""), tuple(rows))
    return Section(f"{prefix}Sites, of one untimed step", table, is_folded=True)


# ---- Where and how


def reproduce_section(result: Result) -> Section:
    """The exact command, in the versions of then."""
    packages = result.environment.get("packages")
    pinned = [f"{name}=={version}" for name, version in packages.items()] if isinstance(packages, dict) else []
    command = [*result.command, *([] if "--seed" in result.command else ["--seed", str(result.seed)])]
    lines = [f"  pip install {shlex.join(pinned)}"] if pinned else []
    lines += [f"  {shlex.join(command)}"] if result.command else []
    facts = [("run", result.run_id), ("made", result.created)]
    facts += [("kernel", f"{kernel.spec}, sha256 {kernel.sha256}") for kernel in result.kernels]
    facts += [("workload", f"sha256 {digest}")] if (digest := result.environment.get("workload_sha256")) else []
    facts += [("samples.csv", f"sha256 {result.samples_sha256}")] if result.samples_sha256 else []
    said = tuple((label, clean(str(text))) for label, text in facts)
    text, why_not = script(result, "")
    plain = f"`{NAME}` in the run's folder gives the headline ratios in plain PyTorch, without e2e."
    notes = ("The seed repeats inputs and schedule, never the times.", plain if text else f"No `{NAME}`: {why_not}.")
    return Section("Reproduce", facts=said, lines=(*map(_command, lines), *notes))


def _command(line: str) -> str:
    return f"  {clean(line, 2000)}"


def environment_section(result: Result) -> Section:
    """Everything that was recorded of the machine."""
    facts = [(clean(name, 40), clean(_plain(value))) for name, value in result.environment.items() if value]
    return Section("Environment", facts=tuple(facts))


def settings_sections(result: Result) -> Iterator[Section]:
    """What policy and workload say beyond their defaults; result.json has the defaults too."""
    for title, record in (("Policy", result.policy), ("Workload", result.workload)):
        fields = _flat(record.model_dump(mode="json", exclude_defaults=True)) if record is not None else ()
        rows = tuple((clean(name, _LABEL), clean(_plain(value))) for name, value in fields)
        table = Table(("field that is not at its default", "value"), rows)
        yield Section(title, table, is_folded=True)


def _flat(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    return "none" if value is None or value == "" else str(value)
