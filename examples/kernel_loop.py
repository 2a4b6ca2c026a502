"""A loop that tries kernels one after the other, as an agent that writes them would: cheap stages first.

    python examples/kernel_loop.py WORKLOAD KERNEL [KERNEL ...] [--policy NAME]

Every try is one line of JSON: what came of it, and what the next kernel has to heed. It ends at the first kernel that
is CONFIRMED (exit code 0), or when none is left or none can win (exit code 10).
"""

from __future__ import annotations

import json
import sys
from typing import Any

import e2e

STAGES = ("check", "screen", "verdict")
"""Right first, then whether there is anything to win, then the whole verdict."""


def lesson(stage: str, result: e2e.Result) -> dict[str, Any]:
    """What one try says, as far as the next one needs it."""
    feedback = result.feedback
    return {
        "stage": stage,
        "run": result.run_id,
        "outcome": result.outcome,
        "reasons": [f"{reason.code}: {reason.message}" for reason in result.reasons[:3]],
        "fault": feedback.fault if feedback else None,
        "failing_case": feedback.failing_case.model_dump(mode="json") if feedback and feedback.failing_case else None,
        "left_to_win": feedback.left_to_win if feedback else None,
        "lost_by": [item.model_dump() for item in feedback.lost_by] if feedback else [],
        "attribution": [(line.what, round(line.microseconds_per_step, 1)) for line in result.attribution],
        "next": feedback.next_actions[0].command if feedback and feedback.next_actions else None,
    }


def tried(workload: str, kernel: str, policy: str | None) -> e2e.Result:
    """The kernel as far as it gets; a later stage only where the earlier one leaves something open."""
    for stage in STAGES:
        result = e2e.validate(workload, kernel, until=stage, policy=policy, quiet=True)
        print(json.dumps({"kernel": kernel, **lesson(stage, result)}), flush=True)
        if result.error is not None or result.outcome is not None:
            break
    return result


def main(arguments: list[str]) -> int:
    """Kernels in order, until one is confirmed or nothing is left to win."""
    policy = None
    if "--policy" in arguments:
        place = arguments.index("--policy")
        policy = arguments[place + 1]
        del arguments[place : place + 2]
    workload, *kernels = arguments
    for kernel in kernels:
        result = tried(workload, kernel, policy)
        if result.outcome is e2e.Outcome.CONFIRMED:
            return 0
        if result.label == "no_headroom":
            break
    return 10


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
