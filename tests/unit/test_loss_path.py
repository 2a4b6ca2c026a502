"""Where training goes: a right kernel stays on the baseline's way, and a wrong one leaves it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from e2e.numerics.loss_path import judged, perturbed, walked
from e2e.ops.rms_norm import RmsNorm
from e2e.patch import Patch, sites_in
from e2e.schema.words import ReasonCode
from tests.sessions import LlamaSession

torch.set_num_threads(1)

OP = RmsNorm()
SEED, STEPS = 5, 12
Norm = Callable[..., Tensor]


@pytest.fixture(scope="module")
def session() -> LlamaSession:
    return LlamaSession(step="train")


@pytest.fixture(scope="module")
def known(session: LlamaSession) -> tuple[dict[str, Tensor], dict[str, list[Tensor]]]:
    own = walked(session, lambda: copy.deepcopy(session.model), seed=SEED, steps=STEPS)  # type: ignore[arg-type]
    return own, perturbed(session, seed=SEED, steps=STEPS)  # type: ignore[arg-type]


def rows(session: LlamaSession, known: Any, kernel: Norm) -> list[dict[str, Any]]:
    def made() -> nn.Module:
        model = copy.deepcopy(session.model)
        Patch(OP, sites_in(model, OP.find_sites(session.model)), lambda site: kernel)
        return model

    return judged(*known, walked(session, made, seed=SEED, steps=STEPS))  # type: ignore[arg-type]


def rounded(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, in another order of operations."""
    return (weight * x) / (x.square().sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt()


class _Biased(torch.autograd.Function):
    """A right forward whose gradients are a little too long."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 1.05


def test_both_optimizers_lead_somewhere(known: Any) -> None:
    own, _ = known
    assert set(own) == {"sgd", "adamw"}
    assert all(path.shape == (STEPS,) and path[0] != path[-1] for path in own.values())


def test_legal_changes_round_otherwise_and_do_not_lead_away(known: Any) -> None:
    own, others = known
    for name, paths in others.items():
        assert len(paths) == 4
        apart = [float((path - own[name]).abs().max()) for path in paths]
        assert max(apart) > 0
        assert max(apart) < 1e-4


@pytest.mark.parametrize("kernel", [OP.reference, rounded])
def test_a_right_kernel_stays_on_the_way(session: LlamaSession, known: Any, kernel: Norm) -> None:
    assert [row["code"] for row in rows(session, known, kernel)] == [None, None]


@pytest.mark.parametrize(
    "kernel",
    [
        lambda x, weight, eps: OP.reference(x, weight, 1e-3),
        lambda x, weight, eps: OP.reference(x, weight, eps).bfloat16().float(),
        lambda x, weight, eps: _Biased.apply(OP.reference(x, weight, eps)),
        lambda x, weight, eps: OP.reference(x, weight.detach(), eps),
    ],
    ids=["epsilon", "rounds to bfloat16", "gradients too long", "weights do not learn"],
)
def test_a_wrong_kernel_leaves_it(session: LlamaSession, known: Any, kernel: Norm) -> None:
    assert ReasonCode.LOSS_PATH_LEFT in [row["code"] for row in rows(session, known, kernel)]


def test_losses_that_are_not_finite_are_told_without_numbers(session: LlamaSession, known: Any) -> None:
    (row, _) = rows(session, known, lambda x, weight, eps: OP.reference(x, weight, eps) * float("nan"))
    assert row["code"] is ReasonCode.NONFINITE_OUTPUT
    assert "apart" not in row


def test_losses_that_were_not_handed_over_are_missed(known: Any) -> None:
    assert {row["code"] for row in judged(*known, {})} == {ReasonCode.WRONG_OUTPUT_LAYOUT}


def test_a_bias_that_stays_within_the_envelope_is_still_a_bias() -> None:
    own = torch.full((20,), 2.0)
    wild = [own + sign * torch.tensor([0.5, -0.5] * 10) for sign in (1, -1)]
    (row,) = judged({"sgd": own}, {"sgd": wild}, {"sgd": own + 0.3})
    assert row["code"] is ReasonCode.LOSS_PATH_LEFT
    assert row["apart"] < row["allowed"]
    (row,) = judged({"sgd": own}, {"sgd": wild}, {"sgd": own + 0.005})
    assert row["code"] is None
