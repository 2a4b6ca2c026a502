"""Three sentences for the person who signs: the decision, what it is worth, and where it holds. Pure."""

from __future__ import annotations

from e2e.schema.result import CellResult, Result
from e2e.schema.verdict import Against, Estimate
from e2e.schema.words import Label, Outcome, ReasonCode
from e2e.story_facts import scope
from e2e.wording import arm, change, clean, count, duration, estimate, opponent, percent

_HOURS = 1000
_DECISIONS = {
    Outcome.REFUTED: "Do not adopt it: it is correct here, and brings no gain worth adopting.",
    Outcome.INCONCLUSIVE: "Do not adopt it yet: this run leaves open whether it is worth it.",
    Outcome.INCORRECT: "Do not adopt it: it is wrong here.",
    Outcome.FAILED: "Do not adopt it: it does not run here.",
    Outcome.NOT_APPLICABLE: "There is nothing to adopt: this model has no place for it.",
}
_VALID = "Valid until the kernel, the workload, the GPU, its driver, torch, transformers or triton changes."


def sentences(result: Result, deciding: CellResult | None) -> tuple[tuple[str, str], ...]:
    """Label and sentence of each; only what can be said."""
    found = [("decision", _decision(result, deciding))]
    if deciding is not None and (worth := _worth(result, deciding)):
        found.append(("worth", worth))
    if deciding is not None and result.outcome is not None:
        said = dict(scope(result, deciding))
        parts = [f"{name.capitalize()}: {said[name]}." for name in ("holds for", "not tested") if name in said]
        found.append(("scope", " ".join([*parts, _VALID])))
    return tuple((label, clean(text, 800)) for label, text in found)


def _decision(result: Result, deciding: CellResult | None) -> str:
    if result.error is not None:
        return "Nothing was decided: the run ended early."
    if result.outcome is None:
        return f"Nothing to sign yet: only the stage `{result.stage}` was asked for, and passed."
    row = _row(result, deciding)
    if result.outcome is Outcome.CONFIRMED:
        what = "needs less memory" if _is_memory(result) else "makes the step faster"
        than = (
            opponent(result.policy.decides, is_command=result.is_command)
            if result.policy
            else "the strongest PyTorch path"
        )
        margin = f" by more than {percent(result.policy.margin)}" if result.policy and not _is_memory(result) else ""
        some = " in the cells where it wins" if len(result.cells) > 1 else ""
        return f"Adopt it{some}: it is correct here, and {what} than {than}{margin}."
    if result.label is Label.MATCHED_BY_PYTORCH and row is not None:
        return f"Do not adopt it: {arm(row.arm)} is as fast, and there is nothing to maintain."
    if any(reason.code is ReasonCode.LIMIT_EXCEEDED for reason in result.reasons[:1]):
        return "Do not adopt it: it is correct here, and beyond a limit of the policy."
    if result.label is Label.REGRESSION:
        return "Do not adopt it: it is correct here, and makes the step slower."
    return _DECISIONS[result.outcome]


def _worth(result: Result, deciding: CellResult) -> str | None:
    """In time per step and in hours of a thousand; of a sweep for every cell once."""
    if _is_memory(result):
        used = deciding.verdict.memory
        mine, theirs = (arms.peak_allocated_bytes if arms else None for arms in (used.candidate, used.baseline))
        return None if mine is None or theirs is None else f"Peak memory of a step: {change(mine - theirs)}."
    if len(result.cells) > 1:
        return _worth_of_sweep(result)
    row = _row(result, deciding)
    if row is None:
        return None
    step = f"A step takes {duration(row.candidate_step_s)} instead of {duration(row.arm_step_s)} ({arm(row.arm)})"
    return f"{step}: {estimate(row.speedup)}. Of {_HOURS:,} hours of such steps {_hours(row.speedup)}."


def _worth_of_sweep(result: Result) -> str | None:
    rows = [row for cell in result.cells if (row := _row(result, cell)) is not None]
    if not rows:
        return None
    mix = result.mix
    if mix is not None and mix.speedup is not None:
        times = f"{duration(mix.candidate_step_s)} instead of {duration(mix.baseline_step_s)}"
        step = f"On the workload's mix a step takes {times} on average: {estimate(mix.speedup)}"
        return f"{step}. Of {_HOURS:,} hours of it {_hours(mix.speedup)}."
    mine, theirs = sum(row.candidate_step_s for row in rows), sum(row.arm_step_s for row in rows)
    ratios = [row.speedup.point_estimate for row in rows]
    reach = f"{min(ratios):.3f}x to {max(ratios):.3f}x"
    once = f"one step of each takes {duration(mine)} instead of {duration(theirs)}"
    return f"Over {count(len(rows), 'timed cell')} the step's ratio is {reach}; {once}, if all are as frequent."


def _hours(speedup: Estimate) -> str:
    """`it saves 146 (142 to 150)`."""
    least, most = sorted(_HOURS * (1 - 1 / bound) for bound in (speedup.lower_bound, speedup.upper_bound))
    point = _HOURS * (1 - 1 / speedup.point_estimate)
    if least <= 0 <= most:
        return f"it saves between {least:+.1f} and {most:+.1f}: no difference was shown"
    low, high = sorted((abs(least), abs(most)))
    return f"it {'saves' if point > 0 else 'costs'} {abs(point):.1f} ({low:.1f} to {high:.1f})"


def _row(result: Result, cell: CellResult | None) -> Against | None:
    rows = cell.verdict.latency.against if cell else []
    decides = result.policy.decides if result.policy else "best_pytorch"
    return next((row for row in rows if row.opponent == decides), None)


def _is_memory(result: Result) -> bool:
    return result.policy is not None and result.policy.objective == "memory"
