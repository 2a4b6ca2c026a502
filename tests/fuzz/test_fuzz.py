"""A minute of `python -m tests.fuzz`, with the same examples every time."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import examples
from tests.fuzz.targets import TARGETS, Target

EXAMPLES = 30


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_ends_in_a_fault_of_ours(target: Target) -> None:
    examples(target, number=EXAMPLES * target.weight, begin=None)
