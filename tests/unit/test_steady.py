"""Warm-up on invented step times."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from e2e.measure.steady import WINDOW, until_steady


class Steps:
    """Step times from a script, and a counter of compilations that grows while the script says so."""

    def __init__(self, seconds: Iterable[float], *, compiling: int = 0) -> None:
        self._seconds = iter(seconds)
        self._compiling = compiling
        self.done = 0

    def run(self, count: int) -> list[float]:
        self.done += count
        return list(itertools.islice(self._seconds, count))

    def disturbances(self) -> int:
        return min(self.done, self._compiling)


def warm(steps: Steps, *, least_steps: int = 10, least_s: float = 0.0, most_s: float = 10.0) -> dict[str, object]:
    return until_steady(steps.run, steps.disturbances, least_steps=least_steps, least_s=least_s, most_s=most_s)


def test_constant_steps_are_steady_after_two_windows() -> None:
    found = warm(Steps(itertools.repeat(0.01)))
    assert found["is_steady"] and found["steps"] == 2 * WINDOW and found["change_ratio"] == 0.0


def test_steps_that_fall_to_a_level_are_waited_for() -> None:
    falling = [0.01 * (1 + 2.0 ** (1 - place)) for place in range(20)]
    found = warm(Steps([*falling, *[0.01] * 100]))
    assert found["is_steady"] and int(str(found["steps"])) >= 15


def test_steps_that_keep_falling_are_given_up_as_not_steady() -> None:
    found = warm(Steps(0.1 * 0.97**place for place in itertools.count()), most_s=1.0)
    assert not found["is_steady"]


def test_a_noisy_host_is_as_warm_as_it_will_be() -> None:
    noise = itertools.cycle([0.010, 0.013, 0.009, 0.012, 0.011, 0.0125, 0.0095, 0.0115, 0.0105, 0.0135, 0.0098])
    assert warm(Steps(noise))["is_steady"]


def test_nothing_is_steady_while_something_is_compiled() -> None:
    found = warm(Steps(itertools.repeat(0.01), compiling=23))
    assert found["is_steady"] and int(str(found["steps"])) == 30


def test_warm_up_takes_as_many_steps_and_as_long_as_the_policy_says() -> None:
    assert warm(Steps(itertools.repeat(0.01)), least_steps=40)["steps"] == 40
    assert warm(Steps(itertools.repeat(0.01)), least_s=0.995)["steps"] == 100
