"""How long an op's calls take within a step, by a stopwatch around each: enough to order ops by."""

from __future__ import annotations

import pytest
import torch

from e2e import registry
from e2e.numerics.stopwatch import STEPS, Stopwatch, seconds_in
from e2e.patch import sites_of
from tests.sessions import LlamaSession

torch.set_num_threads(1)


def test_every_call_is_a_span_and_a_reading_forgets_it() -> None:
    watch = Stopwatch("cpu")
    slow = watch(lambda x: [x := x + 1 for _ in range(1000)][-1])
    assert slow(1) == 1001
    assert watch.seconds() > 0
    assert watch.seconds() == 0


def test_an_ops_time_is_part_of_the_steps_and_the_model_is_as_before() -> None:
    session = LlamaSession()
    op = registry.load("ops", "linear")
    sites = sites_of(op, session.model, ["*"])
    before = [dict(vars(site.module)) for site in sites]
    found = seconds_in(session, op, sites, seed=3)
    assert 0 < found["op_s"] < found["step_s"]
    assert before == [dict(vars(site.module)) for site in sites]
    assert STEPS % 2 == 1, "a median that is one of the readings"


@pytest.mark.parametrize("name", ["rms_norm", "adamw"])
def test_in_training_the_step_is_a_whole_one_and_the_model_is_as_before(name: str) -> None:
    session = LlamaSession(step="train")
    op = registry.load("ops", name)
    before = [item.detach().clone() for item in session.model.parameters()]
    found = seconds_in(session, op, sites_of(op, session.model, ["*"]), seed=3)
    assert 0 < found["op_s"] < found["step_s"]
    assert all(torch.equal(now, then) for now, then in zip(session.model.parameters(), before, strict=True))
    assert all(item.grad is None for item in session.model.parameters())
