"""A training step is torch's own, starts from the snapshot, and leaves a fingerprint that everything goes into."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from e2e.errors import UsageError
from e2e.measure.audit import Fingerprint, allowed_apart
from e2e.measure.fingerprint import Ring
from e2e.numerics.training import PROBES, TrainingReference
from e2e.ops.rms_norm import RmsNorm
from e2e.schema.workload import TrainSpec
from e2e.trainer import GRADIENT, MOVED, Trainer
from tests.sessions import LlamaSession

torch.set_num_threads(1)

OP = RmsNorm()
SEEDS = [11, 12, 13]
Change = Callable[[nn.Module], None]


class Training:
    """One arm of the tiny Llama by itself."""

    def __init__(self, change: Change = lambda model: None, **train: Any) -> None:
        self.session = LlamaSession(step="train", train=TrainSpec(**train))
        self.model = copy.deepcopy(self.session.model)
        change(self.model)
        self.program = self.session.program(self.model)
        assert self.session.train is not None
        self.trainer = Trainer(self.model, self.session.model, self.session.train)

    def run(self, seeds: list[int] = SEEDS) -> list[tuple[Tensor, ...]]:
        """From the snapshot."""
        self.trainer.restore()
        return [self.trainer.step(self.program, self.session.batch(seed)) for seed in seeds]

    def digests(self) -> list[Fingerprint]:
        ring = Ring(len(SEEDS), "cpu")
        for slot, outputs in enumerate(self.run()):
            ring.commit(outputs, slot)
        found = [Fingerprint.read(value) for value in ring.read(len(SEEDS))]
        return [item for item in found if item is not None]

    def probes(self) -> dict[str, Tensor]:
        found = [self.trainer.probe(self.program, self.session.batch(7 + place)) for place in range(PROBES)]
        return {f"{place}:{name}": item for place, probe in enumerate(found) for name, item in probe.items()}


def by_hand(session: LlamaSession, optimizer: Any, *, clip: float | None = None) -> nn.Module:
    """The loop that a user writes."""
    model = copy.deepcopy(session.model)
    steps = optimizer(model.parameters())
    for seed in SEEDS:
        steps.zero_grad()
        parts = session.batch(seed)
        for ids in parts:
            (model(input_ids=ids, labels=ids, use_cache=False).loss / len(parts)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        steps.step()
    return model


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=0.1)


ADAMW = {"learning_rate": 1e-3, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1}
SGD = {"optimizer": "sgd", "learning_rate": 1e-2, "momentum": 0.9, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("fields", "optimizer", "clip"),
    [
        (ADAMW, adamw, None),
        (SGD, sgd, None),
        ({**ADAMW, "gradient_accumulation": 3}, adamw, None),
        ({**SGD, "clip": 0.01}, sgd, 0.01),
    ],
)
def test_steps_are_those_of_the_loop_that_a_user_writes(fields: Any, optimizer: Any, clip: float | None) -> None:
    training = Training(**fields)
    training.run()
    expected = by_hand(training.session, optimizer, clip=clip)
    for mine, theirs in zip(training.model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("how", ["for-loop", "foreach", "fused"])
def test_the_optimizers_implementations_do_the_same(how: str) -> None:
    plain, other = Training(**ADAMW), Training(**ADAMW, implementation=how)
    plain.run()
    other.run()
    torch.testing.assert_close(list(other.model.parameters()), list(plain.model.parameters()))


@pytest.mark.parametrize("fields", [{}, SGD, {"clip": 0.1}])
def test_every_segment_starts_from_the_snapshot_and_keeps_its_addresses(fields: Any) -> None:
    training = Training(**fields)
    first = training.run()
    addresses = [item.data_ptr() for item in training.model.parameters()]
    again = training.run()
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))
    assert [item.data_ptr() for item in training.model.parameters()] == addresses
    training.trainer.restore()
    pairs = zip(training.model.parameters(), training.session.model.parameters(), strict=True)
    assert all(torch.equal(mine, start) and mine is not start for mine, start in pairs)


def test_an_arm_whose_turn_is_over_holds_no_gradients() -> None:
    training = Training()
    training.run()
    assert all(item.grad is not None for item in training.model.parameters())
    training.trainer.release()
    assert all(item.grad is None for item in training.model.parameters())


def test_autocast_rounds_and_the_parameters_stay() -> None:
    exact, cast = Training().run()[0][0], Training(autocast="bfloat16")
    assert not torch.equal(cast.run()[0][0], exact)
    torch.testing.assert_close(cast.run()[0][0], exact, rtol=0.02, atol=0.05)
    assert {item.dtype for item in cast.model.parameters()} == {torch.float32}


# ---- What a step that does less than it should leaves behind


def cut(model: nn.Module) -> None:
    """No gradient reaches what comes before the last norm."""
    norm = model.get_submodule("model.norm")
    own = norm.forward
    norm.forward = lambda x: own(x.detach())  # type: ignore[method-assign]


def distance(training: Training, step: int) -> float:
    return Training().digests()[step].distance(training.digests()[step])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_without_its_update_is_far_from_one_with_it(dtype: str) -> None:
    lazy = Training()
    lazy.trainer._optimizer.step = lambda *_: None  # type: ignore[method-assign,assignment]
    assert distance(lazy, 0) > allowed_apart(0.0, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_without_a_part_of_its_backward_is_far_from_a_whole_one(dtype: str) -> None:
    assert distance(Training(cut), 0) > allowed_apart(0.0, dtype)


def test_a_step_that_repeats_itself_is_near() -> None:
    assert [distance(Training(), step) for step in range(len(SEEDS))] == [0.0] * len(SEEDS)


# ---- Modes against one precision higher


@pytest.fixture(scope="module")
def reference() -> TrainingReference:
    session = LlamaSession(step="train")
    return TrainingReference.of(session, [(OP, OP.find_sites(session.model))], seed=7)


def test_the_baselines_own_error_is_that_of_its_precision(reference: TrainingReference) -> None:
    assert 1e-9 < reference.error_baseline < 1e-6


def test_a_right_arm_has_no_problem(reference: TrainingReference) -> None:
    assert reference.problem(Training().probes()) is None


def test_an_arm_that_loses_gradients_is_told_of_it(reference: TrainingReference) -> None:
    assert "19 parameters get no gradient, such as model" in str(reference.problem(Training(cut).probes()))


def test_an_arm_whose_parameters_stay_is_told_of_it(reference: TrainingReference) -> None:
    found = Training().probes()
    still = {name: torch.zeros_like(item) if MOVED in name else item for name, item in found.items()}
    assert "do not move" in str(reference.problem(still))


def test_an_arm_with_wrong_gradients_is_told_where(reference: TrainingReference) -> None:
    found = Training().probes()
    wrong = f"1:{GRADIENT}model.norm.weight"
    problem = reference.problem({**found, wrong: found[wrong] * 1.001})
    assert problem is not None
    assert "gradients are wrong" in problem
    assert "model.norm.weight" in problem


def test_a_step_that_draws_random_numbers_is_refused() -> None:
    session = LlamaSession(step="train")
    session.model.config.attention_dropout = 0.5
    for layer in session.model.get_submodule("model.layers").children():
        layer.self_attn.attention_dropout = 0.5
    with pytest.raises(UsageError, match="dropout"):
        TrainingReference.of(session, [(OP, OP.find_sites(session.model))], seed=7)
