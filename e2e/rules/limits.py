"""Whether what the objective does not ask for keeps within the policy's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from e2e import wording
from e2e.rules.drift import op_spread
from e2e.rules.memory import memory_of
from e2e.schema.verdict import Reason
from e2e.schema.words import ReasonCode
from e2e.weighing import Case, find_arm

_LEAST = ("coverage", "top1")
"""Limits that are lower bounds; all others are upper ones."""


def limits_exceeded(case: Case) -> Iterator[Reason]:
    """Every limit that was seen to be exceeded, in one reason."""
    found = []
    for name, limit, value in _limited(case):
        if value is not None and (value < limit if name in _LEAST else value > limit):
            word = "at least" if name in _LEAST else "at most"
            found.append(f"{_NAMES[name]} {_shown(name, value)}, {word} {_shown(name, limit)} allowed")
    if found:
        yield Reason(code=ReasonCode.LIMIT_EXCEEDED, message="; ".join(found))


def limits_unseen(case: Case) -> Iterator[Reason]:
    """Limits on what was not seen: unknown is not within."""
    unseen = [_NAMES[name] for name, _, value in _limited(case) if value is None]
    if unseen:
        message = f"the policy limits what this run did not see: {', '.join(unseen)}"
        yield Reason(code=ReasonCode.POLICY_NOT_MET, message=message)


def _limited(case: Case) -> Iterator[tuple[str, float, float | None]]:
    """Name, limit and value of everything that the policy limits; nothing before a verdict was asked for and begun."""
    if not case.is_at_verdict:
        return
    for name, limit in case.policy.limits:
        if limit is not None:
            yield name, limit, _VALUES[name](case)


def _build_s(case: Case) -> float | None:
    """None where a cache had it: what the build once cost is not known."""
    builds = case.evidence.builds
    return None if any(build.cached for build in builds) or not builds else math.fsum(b.seconds for b in builds)


def _first_step_s(case: Case) -> float | None:
    arm = find_arm(case.evidence, case.evidence.candidate)
    return arm.first_step_s if arm else None


def _coverage(case: Case) -> float | None:
    return case.evidence.engagement.coverage if case.evidence.engagement else None


def _memory_ratio(case: Case) -> float | None:
    """Of the first source that shows both arms."""
    seen = memory_of(case)
    for name in ("peak_allocated_bytes", "host_high_water_bytes"):
        mine, theirs = getattr(seen.candidate, name, None), getattr(seen.baseline, name, None)
        if mine is not None and theirs:
            return float(mine / theirs)
    return None


def _model_error_ratio(case: Case) -> float | None:
    check = case.evidence.model_check
    if check is None or check.error_candidate is None or not check.error_baseline:
        return None
    return check.error_candidate / check.error_baseline


def _kl(case: Case) -> float | None:
    return case.evidence.model_check.kl_candidate if case.evidence.model_check else None


def _top1(case: Case) -> float | None:
    return case.evidence.model_check.top1_candidate if case.evidence.model_check else None


def _split_spread(case: Case) -> float | None:
    return case.evidence.model_check.split_candidate if case.evidence.model_check else None


_VALUES: dict[str, Callable[[Case], float | None]] = {
    "build_s": _build_s,
    "first_step_s": _first_step_s,
    "coverage": _coverage,
    "memory_ratio": _memory_ratio,
    "model_error_ratio": _model_error_ratio,
    "kl": _kl,
    "top1": _top1,
    "op_spread": lambda case: op_spread(case.evidence.op_checks),
    "split_spread": _split_spread,
}
_NAMES = {
    "build_s": "build",
    "first_step_s": "first step",
    "coverage": "coverage",
    "memory_ratio": "peak memory",
    "model_error_ratio": "the model's error",
    "kl": "KL divergence",
    "top1": "same top token",
    "op_spread": "two calls on the same input differ by",
    "split_spread": "a row alone and among others differ by",
}


def _shown(name: str, value: float) -> str:
    if name.endswith("_s"):
        return wording.duration(value, digits=3)
    if name in _LEAST:
        return wording.percent(value, digits=4)
    if name.endswith("spread"):
        return wording.small(value)
    return f"{wording.small(value)} nats per token" if name == "kl" else f"{value:.3f}x PyTorch's"
