"""Where in a model an error comes in, and whether it grows: states that are kept, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from e2e import registry
from e2e.numerics.depth import Look, errors, layers_of
from e2e.numerics.examine import Examiner
from e2e.numerics.exercise import model_logits
from e2e.numerics.kept import Kept
from e2e.patch import Standing
from e2e.rules import drift
from e2e.schema.evidence import LayerError, ModelCheck
from e2e.schema.words import ReasonCode
from tests import families, tiny
from tests.sessions import LlamaSession

torch.set_num_threads(1)

OP = registry.load("ops", "rms_norm")
LAYERS = 6


# ---- Layers and states


def test_layers_are_the_lists_of_like_modules_and_what_lies_inside_is_part_of_one() -> None:
    assert layers_of(tiny.llama()) == ["model.layers.0", "model.layers.1"]
    found = layers_of(families.model_of("mixtral"))
    assert found
    assert all("expert" not in name for name in found)
    assert layers_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    assert layers_of(nn.Sequential(nn.ModuleList([nn.Linear(2, 2), nn.ReLU()]))) == []


def test_states_are_those_that_the_layers_leave_at_evenly_spaced_places() -> None:
    session = LlamaSession()
    (ids,) = session.batch(1)
    look = Look(layers_of(session.model), positions=4)
    hidden = session.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    hooks = [len(module._forward_hooks) for module in session.model.modules()]
    _, states = look.on(session.model, lambda: session.model(input_ids=ids, use_cache=False).logits)
    assert torch.equal(states["model.layers.0"], hidden[1][:, [0, 4, 7, 11]])
    assert [len(module._forward_hooks) for module in session.model.modules()] == hooks


def test_layers_that_leave_no_rows_of_numbers_have_no_states() -> None:
    class Odd(nn.Module):
        def __init__(self, made: Any) -> None:
            super().__init__()
            self.made = made

        def forward(self) -> Any:
            return self.made

    kinds: list[Any] = [
        {"state": torch.ones(2, 3)},
        (),
        None,
        torch.ones(2),
        torch.ones(5, 3),
        (torch.ones(2, 3), None),
    ]
    model = nn.ModuleList([Odd(made) for made in kinds])

    def answer() -> Tensor:
        for layer in model:
            layer()
        return torch.ones(2, 7)

    names = [str(place) for place in range(len(kinds))]
    found, states = Look(names, positions=4).on(model, answer)
    assert found.shape == (2, 7)
    assert {name: tuple(state.shape) for name, state in states.items()} == {"5": (2, 1, 3)}


def test_places_are_shared_out_over_all_rows() -> None:
    session = LlamaSession()
    assert Look.into(session.model, session.exam(24, 1)).positions == 64
    assert Look.into(session.model, session.exam(12 * 1000, 1)).positions == 1


def test_where_nothing_is_compared_states_do_not_count() -> None:
    look = Look(("layer",), positions=8)
    exact = torch.ones(2, 4, 3, dtype=torch.float64)
    answers = torch.ones(2, 4, 5)
    answers[0, :2] = 0  # padding on the left
    value = exact.float()
    value[0, :2] = 77
    reference = look.without_padding({"layer": exact}, answers)
    (row,) = errors(look, {"layer": value}, {"layer": exact.float()}, reference)
    assert (row["error_candidate"], row["error_baseline"]) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [None, torch.ones(2, 3), torch.full((2, 4), torch.nan)], ids=["none", "shape", "nan"])
def test_states_that_cannot_be_compared_have_no_error(bad: Tensor | None) -> None:
    exact = torch.ones(2, 4, dtype=torch.float64)
    value = {} if bad is None else {"layer": bad}
    (row,) = errors(Look(("layer",)), value, {"layer": exact.float() * 1.5}, {"layer": exact})
    assert row == {"layer": "layer", "error_candidate": None, "error_baseline": 0.5}


def test_no_place_outweighs_the_others() -> None:
    """A first token's states are often a thousand times as large as all the rest."""
    exact = torch.ones(1, 2, 4, dtype=torch.float64)
    exact[0, 0] *= 1000
    value = exact.clone()
    value[0, 1] *= 1.1
    (row,) = errors(Look(("layer",)), {"layer": value}, {"layer": exact.float()}, {"layer": exact})
    assert row["error_candidate"] == pytest.approx(0.1 / 2**0.5)


# ---- What is made of them


def depth_of(*ratios: float | None) -> list[LayerError]:
    return [
        LayerError(
            layer=f"layers.{place}", error_candidate=None if ratio is None else ratio * 1e-6, error_baseline=1e-6
        )
        for place, ratio in enumerate(ratios)
    ]


@pytest.mark.parametrize(
    ("ratios", "slope", "jump"),
    [
        ((1.0, 1.0, 1.0), 0.0, None),
        ((1.0, 1.4, 2.0, 2.8, 4.0), 2.0, None),
        ((4.0, 2.8, 2.0, 1.4, 1.0), -2.0, "layers.0"),
        ((1.0, 1.0, 3.0, 3.0), 1.9, "layers.2"),
        ((1.0, None, 1.0, 2.0), 1.0, None),
        ((1.0, 1.1), None, None),
        ((), None, None),
    ],
)
def test_the_slope_is_in_doublings_over_the_whole_depth_and_a_jump_has_a_name(
    ratios: tuple[float | None, ...], slope: float | None, jump: str | None
) -> None:
    depth = depth_of(*ratios)
    assert drift.slope(depth) == (None if slope is None else pytest.approx(slope, abs=0.02))
    assert drift.jump(depth) == jump


# ---- In a model


@pytest.fixture(scope="module")
def session() -> LlamaSession:
    found = LlamaSession()
    found.model = tiny.llama(num_hidden_layers=LAYERS).requires_grad_(False)
    return found


def checked(session: LlamaSession, kernel: Any, folder: Path) -> ModelCheck:
    sites = OP.find_sites(session.model)
    examiner = Examiner(session, OP, sites)
    examiner.fit = sites
    examiner.reference_logits(tokens=96, seed=1, kept=Kept(None, []))
    standing = [Standing(OP, sites, kernel)]
    model_logits(session, standing, calls=session.exam(96, 1), path=folder / "logits")
    return ModelCheck.model_validate(examiner.compare_logits(path=folder / "logits", ratio=2.0))


def test_an_honest_kernel_errs_as_the_baseline_does_behind_every_layer(session: LlamaSession, tmp_path: Path) -> None:
    found = checked(session, OP.alternatives["F.rms_norm"], tmp_path)
    assert [layer.layer for layer in found.depth] == [f"model.layers.{place}" for place in range(LAYERS)]
    assert all(0.5 < ratio < 1.5 for _, ratio in drift.ratios(found.depth))
    assert abs(drift.slope(found.depth) or 0.0) < 0.5
    assert drift.jump(found.depth) is None
    assert found.kl_tail_candidate is not None
    assert found.kl_candidate is not None
    assert found.kl_tail_candidate >= found.kl_candidate


def test_an_error_that_grows_from_layer_to_layer_has_a_slope(session: LlamaSession, tmp_path: Path) -> None:
    """Always to the same side: at no site more than the op rule allows, and never averaged out."""
    calls = iter(range(10**6))

    def leaning(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        site = next(calls) % (2 * LAYERS + 1)
        return OP.alternatives["F.rms_norm"](x, weight, eps) * (1 + site * 1e-7)

    found = checked(session, leaning, tmp_path)
    known = drift.ratios(found.depth)
    assert known[-1][1] > 2 * known[0][1]
    assert (drift.slope(found.depth) or 0.0) > 0.5


def test_the_layer_at_which_a_kernel_is_wrong_is_named(session: LlamaSession, tmp_path: Path) -> None:
    calls = iter(range(10**6))

    def wrong_once(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        is_there = next(calls) % (2 * LAYERS + 1) == 6  # of layer 3, the first norm
        return OP.alternatives["F.rms_norm"](x, weight, eps) * (1.001 if is_there else 1)

    found = checked(session, wrong_once, tmp_path)
    assert found.code is ReasonCode.MODEL_ERROR_EXCEEDED
    assert drift.jump(found.depth) == "model.layers.3"
