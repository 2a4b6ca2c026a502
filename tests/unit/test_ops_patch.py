"""Kernels of `kind: patch` where ops are: their sites alone, in the model, in training, and in every arm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from e2e.arms import Arena
from e2e.bound import Bound, Candidate, Part
from e2e.numerics.examine import Examiner
from e2e.numerics.exercise import engage, gradients, model_logits, run_calls, step_outputs
from e2e.numerics.training import compare
from e2e.ops.patch import PatchOp
from e2e.patch import Standing, sites_of
from e2e.protocols import Site
from e2e.schema.evidence import CAPTURED, UNUSUAL
from e2e.scout import Replica, replica_of
from tests import tiny
from tests.patches import llama as patches
from tests.sessions import LlamaSession

torch.set_num_threads(1)

RATIO = 2.0
MLPS = [f"model.layers.{number}.mlp" for number in range(tiny.LAYERS)]


class PatchedLlama:
    """A session, the op of patches in it, and what one of them made of its model."""

    def __init__(self, entry: Callable[..., Any], *, step: str = "prefill") -> None:
        self.session = LlamaSession(step=step)
        self.op = PatchOp()
        self.replica: Replica = replica_of(entry, self.session.model)
        named = sites_of(self.op, self.session.model, ["*"])
        self.sites: list[Site] = [site for site in named if site.fqn in self.replica.fqns]
        self.examiner = Examiner(self.session, self.op, self.sites)

    def survey(self, folder: Path) -> list[dict[str, Any]]:
        found = self.examiner.survey(seed=1, path=folder / "calls", budget_bytes=2**24, is_named=True)
        rows: list[dict[str, Any]] = found["sites"]
        return rows

    def checked(self, folder: Path) -> list[dict[str, Any]]:
        """What the op check says of every call, after a survey."""
        names = {"inputs": folder / "calls", "outputs": folder / "outputs"}
        run_calls(self.op, self.replica, **names, constraints=[], device="cpu")
        return self.examiner.compare_ops(outputs=folder / "outputs", ratio=RATIO)

    @property
    def standing(self) -> Standing:
        return Standing(self.op, self.sites, self.replica)

    def arena(self) -> Arena:
        kernel = Bound(self.replica, "0" * 64)
        return Arena(self.session, [Part(self.op, self.sites, Candidate(kernel, frozenset(self.replica.fqns)))])


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


# ---- Its sites alone


def test_sites_of_one_tensor_are_checked_alone_and_others_say_why_not(tmp_path: Path) -> None:
    patched = PatchedLlama(patches.on_model)
    rows = {row["fqn"]: row for row in patched.survey(tmp_path)}
    assert set(patched.replica.fqns) == set(rows)
    assert {None} == {row["incompatible"] for row in rows.values()}
    said = {row["owner"]: row["unchecked"] for row in rows.values()}
    assert {
        "LlamaAttention": "it is called with more than one tensor",
        "LlamaMLP": None,
        "LlamaRMSNorm": None,
    } == said
    checks = patched.checked(tmp_path)
    assert {"passed"} == {check["status"] for check in checks}
    captured = {check["site"] for check in checks if check["label"] == CAPTURED}
    assert {fqn for fqn, row in rows.items() if row["unchecked"] is None} == captured


def test_a_wrong_patch_is_wrong_at_its_sites(tmp_path: Path) -> None:
    patched = PatchedLlama(patches.wrong)
    patched.survey(tmp_path)
    checks = [check for check in patched.checked(tmp_path) if check["label"] not in UNUSUAL]
    assert {"op_error_exceeded"} == {check["code"] for check in checks}


def test_every_wrong_output_made_on_purpose_is_rejected(tmp_path: Path) -> None:
    patched = PatchedLlama(patches.on_model)
    patched.survey(tmp_path)
    rows = patched.examiner.mutants(ratio=RATIO)
    assert len(patched.op.mutants()) == len(rows)
    assert all(row["caught"] for row in rows)


def test_the_reference_does_not_round_where_the_module_casts() -> None:
    patched = PatchedLlama(patches.on_model)
    norm: Any = patched.session.model.get_submodule("model.norm")
    x = torch.randn(4, tiny.HIDDEN, dtype=torch.float64)
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    torch.testing.assert_close(
        norm.weight.double() * (x * scale), patched.op.reference(x, "model.norm"), rtol=1e-14, atol=0
    )
    rounded = norm.double()(x)
    norm.float()
    assert (rounded - patched.op.reference(x, "model.norm")).abs().max() > 1e-9, "else nothing was shown"


def test_where_no_site_takes_one_tensor_nothing_is_checked_alone(tmp_path: Path) -> None:
    patched = PatchedLlama(patches.rope_only)
    assert {"LlamaAttention"} == {row["owner"] for row in patched.survey(tmp_path) if row["unchecked"]}
    assert ([], []) == (patched.checked(tmp_path), patched.examiner.mutants(ratio=RATIO))


def test_a_site_that_no_step_calls_is_none_here(tmp_path: Path) -> None:
    def forward_of_dropout(net: nn.Module) -> None:
        net.model.layers[0].mlp.act_fn.unused = nn.Identity()  # type: ignore[union-attr, index]
        net.model.rotary_emb.note = "changed"  # type: ignore[union-attr]

    patched = PatchedLlama(forward_of_dropout)
    rows = {row["fqn"]: row["incompatible"] for row in patched.survey(tmp_path)}
    assert {"model.layers.0.mlp.act_fn": None, "model.rotary_emb": None} == rows


# ---- In the model


@pytest.mark.parametrize("entry", [patches.on_model, patches.before_model, patches.on_classes])
def test_every_site_is_seen_to_run(entry: Callable[..., Any]) -> None:
    patched = PatchedLlama(entry)
    found = engage(patched.session, [patched.standing], seed=1)
    assert {"calls": dict.fromkeys(patched.replica.fqns, 1), "watermark_moved": [True]} == found


def test_the_models_logits_are_the_patched_ones(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    patched = PatchedLlama(patches.wrong)
    (ids,) = patched.session.batch(1)
    calls = model_logits(patched.session, [patched.standing], calls=[(ids,)], path=tmp_path / "logits")
    assert len(patched.sites) == sum(calls.values())
    expected = patched.session.answers(patched.replica.model, ids).reshape(-1, tiny.VOCABULARY)
    assert torch.equal(expected, load_file(tmp_path / "logits")["logits"])
    assert not torch.allclose(expected, patched.session.answers(patched.session.model, ids).reshape(expected.shape))


def test_in_training_every_parameter_keeps_its_gradient(tmp_path: Path) -> None:
    patched = PatchedLlama(patches.on_model, step="train")
    patched.survey(tmp_path)
    own = gradients(patched.session, [], seed=1, path=tmp_path / "baseline")
    theirs = gradients(patched.session, [patched.standing], seed=1, path=tmp_path / "candidate")
    assert own["with_gradient"] == theirs["with_gradient"]
    assert dict.fromkeys(patched.replica.fqns, 1) == theirs["calls"]
    files = (tmp_path / "baseline", tmp_path / "candidate")
    found = compare(patched.session, patched.examiner.occurrences, *files, ratio=RATIO, seed=1)
    assert "passed" == found["status"]
    assert all(p.grad is None for p in patched.session.model.parameters()), "the training copy is its own"


# ---- Arms


def test_the_candidates_arm_is_the_patched_model_and_the_baselines_is_not() -> None:
    patched = PatchedLlama(patches.on_model)
    arena = patched.arena()
    own = step_outputs(patched.session, patched.session.model, 5)
    for name in ("candidate:eager", "baseline:eager", "sham:eager"):
        arena.prepare(name, seed=7)
    assert same(step_outputs(patched.session, patched.replica.model, 5), arena.outputs("candidate:eager", 5))
    assert same(own, arena.outputs("baseline:eager", 5))
    assert same(own, arena.outputs("sham:eager", 5))
    assert not same(own, arena.outputs("candidate:eager", 5))


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # torch's own, on first import
def test_a_compiled_arm_proves_how_many_sites_are_in_its_graph() -> None:
    patched = PatchedLlama(patches.on_model)
    arena = patched.arena()
    known = arena.prepare("candidate:compile", seed=7)
    assert len(patched.sites) == sum(known["kernel_calls"])
    assert known["regions"] and not known["graph_breaks"]
    assert [0] == arena.prepare("baseline:compile", seed=7)["kernel_calls"]
    torch.testing.assert_close(
        step_outputs(patched.session, patched.replica.model, 5), arena.outputs("candidate:compile", 5)
    )


def test_a_patch_that_breaks_the_graph_is_refused_compiled() -> None:
    patched = PatchedLlama(patches.breaks_graph)
    arena = patched.arena()
    arena.prepare("candidate:eager", seed=7)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        arena.prepare("candidate:compile", seed=7)


def test_headroom_replays_what_owners_of_one_tensor_returned() -> None:
    patched = PatchedLlama(patches.wrong)
    arena = patched.arena()
    for name in ("headroom:eager", "baseline:eager"):
        arena.prepare(name, seed=7)
    assert same(arena.outputs("baseline:eager", 7), arena.outputs("headroom:eager", 7))


def test_there_is_no_ceiling_where_an_owner_cannot_be_replayed() -> None:
    with pytest.raises((RuntimeError, TypeError), match="more than one tensor"):
        PatchedLlama(patches.on_model).arena().prepare("headroom:eager", seed=7)
