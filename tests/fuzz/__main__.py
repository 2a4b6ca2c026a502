"""`python -m tests.fuzz --minutes 30`: every target in turn, with other examples each time, until the time is over."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.targets import TARGETS, Target, attempt

EXAMPLES = 60
"""Of a target of weight 1 in one round."""
WIDTH = 1000


def examples(target: Target, *, number: int, begin: int | None) -> None:
    """Try so many examples; `begin` seeds them, None takes the same ones every time.

    Raises:
        AssertionError: one of them shows a fault; hypothesis prints the smallest.
    """

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=begin is None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=target.cases)
    def check(case: object) -> None:
        attempt(target, case)

    (check if begin is None else seed(begin)(check))()


def main() -> int:
    """Zero where nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--only", choices=[target.name for target in TARGETS], action="append")
    parser.add_argument("--seed", type=int, help="that of a round which found something")
    asked = parser.parse_args()
    chosen = [target for target in TARGETS if not asked.only or target.name in asked.only]
    end, rounds, found = time.monotonic() + 60 * asked.minutes, 0, {}
    while time.monotonic() < end and len(found) < len(chosen):
        begin = secrets.randbelow(2**32) if asked.seed is None else asked.seed
        for target in (target for target in chosen if target.name not in found and time.monotonic() < end):
            try:
                examples(target, number=EXAMPLES * target.weight, begin=begin)
            except Exception:  # noqa: BLE001  whatever an input brings up is what is looked for
                found[target.name] = begin
                print(f"---- {target.name}, --seed {begin}\n{_shortened(traceback.format_exc())}", flush=True)
        rounds += 1
    shown = ", ".join(f"{name} (--seed {begin})" for name, begin in found.items()) or "nothing"
    print(f"{rounds} rounds of {sum(EXAMPLES * target.weight for target in chosen)} examples; found: {shown}")
    return 1 if found else 0


def _shortened(text: str) -> str:
    """With long lines, as examples are, cut."""
    return "\n".join(row if len(row) <= WIDTH else f"{row[:WIDTH]}..." for row in text.split("\n"))


if __name__ == "__main__":
    sys.exit(main())
