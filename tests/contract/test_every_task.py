"""What every task in `e2e/tasks/` owes: a session whose steps repeat themselves, differ by seed, and keep no state."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from e2e import registry
from e2e.configuration import load_workload
from e2e.errors import UsageError
from e2e.patch import copy_sharing_weights
from e2e.schema.workload import cells_of
from tests import tiny

torch.set_num_threads(1)

STEPS = [(name, step) for name in registry.names("tasks") for step in registry.load("tasks", name).steps]
INFERENCE = [(name, step) for name, step in STEPS if step != "train"]

every_step = pytest.mark.parametrize(("name", "step"), STEPS)
every_inference = pytest.mark.parametrize(("name", "step"), INFERENCE)


@cache
def opened(workload: Path, name: str, step: str, dtype: str = "float32", batch: int = 2) -> Any:
    loaded = load_workload(
        str(workload), [f"task={name}", f"step={step}", f"model.dtype={dtype}", f"cells.batch=[{batch}]"]
    )
    cell = cells_of(loaded.workload)[0]
    session = registry.load("tasks", name).open(loaded.workload, cell, root=workload.parent, device="cpu", seed=3)
    session.prepare(3)
    return session


def outputs(session: Any, seed: int, model: Any = None) -> tuple[Tensor, ...]:
    with torch.no_grad():
        session.reset()
        found = session.program(model or session.model)(*session.batch(seed))
        return tuple(tensor.clone() for tensor in found)


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_there_is_a_task_with_every_kind_of_step() -> None:
    assert {"prefill", "decode", "train"} <= {step for _, step in STEPS}


@every_step
def test_its_facts_can_be_sent_and_name_the_model(tiny_workload: Path, name: str, step: str) -> None:
    facts = opened(tiny_workload, name, step).facts
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["vocabulary"] == tiny.VOCABULARY
    assert facts["model_class"] == "LlamaForCausalLM"


@every_step
def test_a_batch_is_fresh_tensors_on_the_device_by_seed(tiny_workload: Path, name: str, step: str) -> None:
    session = opened(tiny_workload, name, step)
    first, again, other = session.batch(1), session.batch(1), session.batch(2)
    assert same(first, again)
    assert not same(first, other)
    assert first[0].data_ptr() != again[0].data_ptr()
    assert {tensor.device.type for tensor in first} == {"cpu"}


@every_step
def test_step_after_step_has_new_values(tiny_workload: Path, name: str, step: str) -> None:
    session = opened(tiny_workload, name, step)
    seen = {tuple(session.batch(seed)[0].flatten().tolist()) for seed in range(2**31, 2**31 + 50)}
    assert len(seen) > (25 if step == "decode" else 49), "a decode step is one token of a byte's 256 a row"


@every_step
def test_parameters_have_the_stated_dtype_and_ask_for_gradients_only_in_training(
    tiny_workload: Path, name: str, step: str
) -> None:
    session = opened(tiny_workload, name, step, "bfloat16")
    assert {p.dtype for p in session.model.parameters()} == {torch.bfloat16}
    assert {p.requires_grad for p in session.model.parameters()} == {step == "train"}
    assert not session.model.training


@every_inference
def test_a_step_gives_a_tuple_of_tensors_logits_first(tiny_workload: Path, name: str, step: str) -> None:
    session = opened(tiny_workload, name, step)
    with torch.no_grad():
        session.reset()
        found = session.program(session.model)(*session.batch(1))
    assert isinstance(found, tuple)
    assert all(type(tensor) is Tensor for tensor in found)
    assert tuple(found[0].shape) == (2, 1, tiny.VOCABULARY)


@every_inference
def test_a_step_repeats_itself_whatever_ran_before(tiny_workload: Path, name: str, step: str) -> None:
    session = opened(tiny_workload, name, step)
    first = outputs(session, 1)
    for seed in range(2, 12):
        outputs(session, seed)
    assert same(first, outputs(session, 1))
    assert not same(first, outputs(session, 2))


@every_inference
def test_two_processes_with_one_seed_have_one_session(tiny_workload: Path, name: str, step: str) -> None:
    first = outputs(opened(tiny_workload, name, step), 1)
    opened.cache_clear()
    assert same(first, outputs(opened(tiny_workload, name, step), 1))


@every_inference
def test_an_arm_on_shared_weights_runs_the_same_step(tiny_workload: Path, name: str, step: str) -> None:
    session = opened(tiny_workload, name, step)
    arm = copy_sharing_weights(session.model)
    assert same(outputs(session, 1), outputs(session, 1, arm))


@every_inference
def test_the_step_is_what_a_pass_without_a_cache_computes(tiny_workload: Path, name: str, step: str) -> None:
    """The reference of a step is computed that way."""
    session = opened(tiny_workload, name, step)
    with torch.no_grad():
        whole = session.model(input_ids=session.step_ids(1), use_cache=False, logits_to_keep=1).logits
    torch.testing.assert_close(outputs(session, 1)[0], whole, rtol=1e-4, atol=1e-5)


@every_inference
def test_a_steps_outputs_depend_on_the_ids_of_every_row(tiny_workload: Path, name: str, step: str) -> None:
    one, other = outputs(opened(tiny_workload, name, step), 1), outputs(opened(tiny_workload, name, step), 2)
    assert all(not torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))


@pytest.mark.parametrize("name", [name for name, step in STEPS if step == "train"])
def test_a_training_step_has_a_loss_that_reaches_every_parameter(tiny_workload: Path, name: str) -> None:
    session = opened(tiny_workload, name, "train")
    loss = session.loss(session.model, session.batch(1))
    assert loss.dim() == 0
    assert float(loss.detach()) > 0
    loss.backward()
    assert [n for n, p in session.model.named_parameters() if p.grad is None] == []
    session.model.zero_grad()


@every_step
def test_teacher_forced_logits_have_one_row_for_every_token(tiny_workload: Path, name: str, step: str) -> None:
    session = opened(tiny_workload, name, step)
    ids = session.tokens.windows(2, 9, 1)
    logits = session.logits(session.model, ids)
    assert tuple(logits.shape) == (2, 9, tiny.VOCABULARY)
    assert not logits.requires_grad


@pytest.mark.parametrize("name", registry.names("tasks"))
def test_a_text_shorter_than_a_row_is_the_callers_mistake(tiny_workload: Path, name: str) -> None:
    loaded = load_workload(str(tiny_workload), ["cells.sequence=[1000000]"])
    cell = cells_of(loaded.workload)[0]
    session = registry.load("tasks", name).open(loaded.workload, cell, root=tiny_workload.parent, device="cpu", seed=1)
    with pytest.raises(UsageError, match=r"20000 tokens, but a row needs 1000000"):
        session.batch(1)


@pytest.mark.parametrize("weights", ["pretrained", "random"])
@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ("num_hiden_layers=2", r"llama has no field 'num_hiden_layers'; did you mean 'num_hidden_layers'\?"),
        ("quite_other=2", "llama has no field 'quite_other'; see the fields of LlamaConfig"),
    ],
)
@pytest.mark.parametrize("name", registry.names("tasks"))
def test_a_misspelt_field_of_the_models_config_is_never_passed_over(
    tiny_workload: Path, name: str, weights: str, field: str, complaint: str
) -> None:
    kind = ["model.config.model_type=llama"] if weights == "random" else []
    loaded = load_workload(str(tiny_workload), [f"model.weights={weights}", *kind, f"model.config.{field}"])
    cell = cells_of(loaded.workload)[0]
    with pytest.raises(UsageError, match=complaint):
        registry.load("tasks", name).open(loaded.workload, cell, root=tiny_workload.parent, device="cpu", seed=1)


@pytest.mark.parametrize("field", ["hidden_size=-8", "num_attention_heads=0", "vocab_size=none"])
@pytest.mark.parametrize("name", registry.names("tasks"))
def test_numbers_that_make_no_model_are_the_callers_mistake(tiny_workload: Path, name: str, field: str) -> None:
    overrides = ["model.weights=random", "model.config.model_type=llama", f"model.config.{field}"]
    loaded = load_workload(str(tiny_workload), overrides)
    cell = cells_of(loaded.workload)[0]
    with pytest.raises(UsageError, match=r"model\.config: "):
        registry.load("tasks", name).open(loaded.workload, cell, root=tiny_workload.parent, device="cpu", seed=1)
