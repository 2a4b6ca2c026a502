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
from e2e.schema.workload import COMMAND, cells_of
from tests.specimens import CLASSES, WORKLOADS, write_workloads

torch.set_num_threads(1)

TASKS = [name for name in registry.names("tasks") if name != COMMAND]
STEPS = [(name, step) for name in TASKS for step in registry.load("tasks", name).steps]
INFERENCE = [(name, step) for name, step in STEPS if step != "train"]

every_task = pytest.mark.parametrize("name", TASKS)
every_step = pytest.mark.parametrize(("name", "step"), STEPS)
every_inference = pytest.mark.parametrize(("name", "step"), INFERENCE)
Files = dict[str, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_workloads(tmp_path_factory.mktemp("specimens"))


def made(file: Path, name: str, *overrides: str) -> Any:
    loaded = load_workload(str(file), overrides)
    cell = cells_of(loaded.workload)[0]
    return registry.load("tasks", name).open(loaded.workload, cell, root=file.parent, device="cpu", seed=3)


@cache
def opened(file: Path, name: str, step: str, dtype: str = "float32") -> Any:
    session = made(file, name, f"step={step}", f"model.dtype={dtype}")
    session.prepare(3)
    return session


def outputs(session: Any, seed: int, model: Any = None) -> tuple[Tensor, ...]:
    with torch.no_grad():
        session.reset()
        found = session.program(model or session.model)(*session.batch(seed))
        return tuple(tensor.clone() for tensor in found)


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def row_of(batch: tuple[Tensor, ...], row: int) -> tuple[Tensor, ...]:
    return tuple(tensor[row : row + 1] for tensor in batch)


def test_there_is_a_task_with_every_kind_of_step() -> None:
    assert {"prefill", "decode", "generate", "train", "forward"} <= {step for _, step in STEPS}


def test_every_task_has_a_specimen_and_no_specimen_is_left_over() -> None:
    assert set(WORKLOADS) == set(TASKS) == set(CLASSES)


@every_task
def test_its_steps_are_known_without_running_it(name: str) -> None:
    assert registry.steps_of(name, Path()) == registry.load("tasks", name).steps


@every_step
def test_its_facts_can_be_sent_and_name_the_model_and_the_data(files: Files, name: str, step: str) -> None:
    facts = opened(files[name], name, step).facts
    assert json.loads(facts.model_dump_json())["model_class"] == CLASSES[name]
    assert facts.parameters == sum(p.numel() for p in opened(files[name], name, step).model.parameters())
    assert facts.dtypes["float32"] >= facts.parameters
    assert facts.attention == facts.attention_asked == "sdpa"
    assert facts.data
    assert not facts.is_synthetic


@every_step
def test_a_batch_is_fresh_tensors_on_the_device_by_seed(files: Files, name: str, step: str) -> None:
    session = opened(files[name], name, step)
    first, again, other = session.batch(1), session.batch(1), session.batch(2)
    assert same(first, again)
    assert not same(first, other)
    assert first[0].data_ptr() != again[0].data_ptr()
    assert {tensor.device.type for tensor in first} == {"cpu"}
    assert {tensor.shape[0] for tensor in first} == {session.cell.batch}


@every_step
def test_step_after_step_has_new_values(files: Files, name: str, step: str) -> None:
    session = opened(files[name], name, step)
    seen = {tuple(session.batch(seed)[0].flatten().tolist()) for seed in range(2**31, 2**31 + 50)}
    assert len(seen) > (25 if step == "decode" else 49), "a decode step is one token of a byte's 256 a row"


@every_step
def test_numbers_have_the_stated_dtype_and_ask_for_gradients_only_in_training(
    files: Files, name: str, step: str
) -> None:
    session = opened(files[name], name, step, "bfloat16")
    assert {p.dtype for p in session.model.parameters()} == {torch.bfloat16}
    assert {p.requires_grad for p in session.model.parameters()} == {step == "train"}
    assert not session.model.training
    assert {tensor.dtype for tensor in session.batch(1)} <= {torch.bfloat16, torch.int64}


@every_inference
def test_a_step_gives_a_tuple_of_tensors_answers_first(files: Files, name: str, step: str) -> None:
    session = opened(files[name], name, step)
    with torch.no_grad():
        session.reset()
        found = session.program(session.model)(*session.batch(1))
    assert isinstance(found, tuple)
    assert all(type(tensor) is Tensor for tensor in found)
    assert (found[0].shape[0], found[0].shape[-1]) == (session.cell.batch, session.answer.width)


@every_inference
def test_a_step_repeats_itself_whatever_ran_before(files: Files, name: str, step: str) -> None:
    session = opened(files[name], name, step)
    first = outputs(session, 1)
    for seed in range(2, 12):
        outputs(session, seed)
    assert same(first, outputs(session, 1))
    assert not same(first, outputs(session, 2))


@every_inference
def test_two_processes_with_one_seed_have_one_session(files: Files, name: str, step: str) -> None:
    first = outputs(opened(files[name], name, step), 1)
    opened.cache_clear()
    assert same(first, outputs(opened(files[name], name, step), 1))


@every_inference
def test_an_arm_on_shared_weights_runs_the_same_step(files: Files, name: str, step: str) -> None:
    session = opened(files[name], name, step)
    arm = copy_sharing_weights(session.model)
    assert same(outputs(session, 1), outputs(session, 1, arm))


@every_inference
def test_a_steps_first_output_is_what_one_row_after_another_gives_without_state(
    files: Files, name: str, step: str
) -> None:
    """The reference of a step is computed that way."""
    session = opened(files[name], name, step)
    inputs = session.step_inputs(1)
    rows = [session.step_answers(session.model, *row_of(inputs, row)) for row in range(session.cell.batch)]
    torch.testing.assert_close(outputs(session, 1)[0], torch.cat(rows), rtol=1e-4, atol=1e-5)


@every_inference
def test_a_steps_outputs_depend_on_the_inputs_of_every_row(files: Files, name: str, step: str) -> None:
    one, other = outputs(opened(files[name], name, step), 1), outputs(opened(files[name], name, step), 2)
    assert all(not torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))


@every_step
@pytest.mark.parametrize("tokens", [1, 300])
def test_the_exams_answers_have_rows_of_their_width_and_are_counted(
    files: Files, name: str, step: str, tokens: int
) -> None:
    session = opened(files[name], name, step)
    calls = session.exam(tokens, 5)
    assert all(same(one, two) for one, two in zip(calls, session.exam(tokens, 5), strict=True))
    answers = torch.cat([session.answers(session.model, *inputs) for inputs in calls])
    assert answers.shape[-1] == session.answer.width
    assert not answers.requires_grad
    rows = answers.reshape(-1, session.answer.width)
    assert sum(session.count(*inputs) for inputs in calls) == int((rows != 0).any(-1).sum())


@every_step
def test_labels_are_there_where_the_task_says_so(files: Files, name: str, step: str) -> None:
    session = opened(files[name], name, step)
    inputs = session.exam(64, 5)[0]
    labels = session.labels(*inputs)
    assert (labels is not None) == session.answer.has_labels
    if labels is not None:
        assert labels.numel() == session.answers(session.model, *inputs)[..., 0].numel()
        assert -1 <= int(labels.min()) < int(labels.max()) < session.answer.width


@every_step
def test_the_exams_answers_are_those_of_one_row_after_another(files: Files, name: str, step: str) -> None:
    session = opened(files[name], name, step)
    inputs = session.exam(64, 5)[0]
    whole = session.answers(session.model, *inputs)
    rows = [session.answers(session.model, *row_of(inputs, row)) for row in range(inputs[0].shape[0])]
    torch.testing.assert_close(whole, torch.cat(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, step in STEPS if step == "train"])
def test_a_training_step_has_a_loss_that_reaches_every_parameter(files: Files, name: str) -> None:
    session = opened(files[name], name, "train")
    loss = session.loss(session.model, session.batch(1))
    assert loss.dim() == 0
    assert float(loss.detach()) > 0
    loss.backward()
    assert [n for n, p in session.model.named_parameters() if p.grad is None] == []
    session.model.zero_grad()


@every_inference
def test_conditions_follow_the_seed_and_are_answered_row_by_row(name: str, step: str, files: Files) -> None:
    session = opened(files[name], name, step)
    known = getattr(session, "conditions", None)
    first, again, other = (known(seed) if known is not None else [] for seed in (1, 1, 2))
    assert [label for label, _ in first] == [label for label, _ in other]
    for (_, inputs), (_, same), (_, others) in zip(first, again, other, strict=True):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(inputs, same, strict=True))
        assert any(not torch.equal(mine, theirs) for mine, theirs in zip(inputs, others, strict=True))
        rows = [tuple(tensor[row : row + 1] for tensor in inputs) for row in range(len(inputs[0]))]
        alone = torch.cat([session.answers_under(session.model, *row) for row in rows])
        torch.testing.assert_close(session.answers_under(session.model, *inputs), alone, rtol=1e-3, atol=1e-3)


@every_inference
def test_drawn_inputs_are_said_to_be_drawn(files: Files, name: str, step: str) -> None:
    session = made(files[name], name, f"step={step}", "data.path=synthetic")
    session.prepare(3)
    assert session.facts.is_synthetic
    assert "drawn" in session.facts.data
    assert not same(outputs(session, 1), outputs(session, 2))


@every_task
def test_rows_of_tokens_have_a_stated_length_and_images_need_none(files: Files, name: str) -> None:
    if name == "image-classification":
        assert made(files[name], name, "cells={batch: [3]}").batch(1)[0].shape[0] == 3
        return
    with pytest.raises(UsageError, match=rf"cells\.sequence: a row of {name} is so many tokens"):
        made(files[name], name, "cells={batch: [3]}")


@every_step
def test_batches_made_from_raw_data_are_like_the_prepared_ones_and_no_two_alike(
    files: Files, name: str, step: str
) -> None:
    session = opened(files[name], name, step)
    if not hasattr(session, "made"):
        assert name == "speech-seq2seq"
        return
    if step == "decode":
        with pytest.raises(UsageError, match="a decoding step takes one token"):
            session.made(1)
        return
    made, prepared = session.made(1), session.batch(1)
    assert [tensor.shape for tensor in made] == [tensor.shape for tensor in prepared]
    assert [tensor.is_floating_point() for tensor in made] == [tensor.is_floating_point() for tensor in prepared]
    assert same(made, session.made(1)) and not same(made, session.made(2))
    if name in ("feature-extraction", "seq2seq-lm"):
        ids, mask = made[0], made[1]
        assert 0 < int(mask.sum()) <= mask.numel() and bool((ids[mask == 0] == 0).all())


def test_a_text_shorter_than_a_row_is_the_callers_mistake(files: Files) -> None:
    session = made(files["causal-lm"], "causal-lm", "step=prefill", "cells.sequence=[1000000]")
    with pytest.raises(UsageError, match=r"20000 tokens, but a row needs 1000000"):
        session.batch(1)


@pytest.mark.parametrize(
    ("tokens", "shapes"),
    [(64, [(2, 32)]), (150, [(2, 32), (2, 32)]), (63, [(1, 32)]), (5, [(1, 5)])],
    ids=["one step's", "two steps'", "fewer", "fewer than a row"],
)
def test_a_language_model_is_compared_in_calls_of_the_steps_own_shape_where_tokens_suffice(
    files: Files, tokens: int, shapes: list[tuple[int, ...]]
) -> None:
    """A kernel that is wrong only at the timed shape, in rows that no output of a step shows, is wrong here."""
    session = opened(files["causal-lm"], "causal-lm", "prefill")
    assert [tuple(ids.shape) for (ids,) in session.exam(tokens, 1)] == shapes


@pytest.mark.parametrize("backend", [None, "eager"], ids=["not compiled", "compiled in one piece"])
def test_a_dynamic_cache_grows_in_a_step_and_is_its_context_again_before_the_next(
    files: Files, backend: str | None
) -> None:
    session = made(files["causal-lm"], "causal-lm", "step=decode", "cache=dynamic")
    session.prepare(3)
    program = session.program(session.model)
    step = torch.compile(program, backend=backend, fullgraph=True, dynamic=False) if backend else program
    with torch.no_grad():
        found = []
        for seed in (1, 2, 1):
            session.reset()
            assert {layer.keys.shape[2] for layer in session._cache.layers} == {32}
            found.append(step(*session.batch(seed))[0].clone())
            assert {layer.keys.shape[2] for layer in session._cache.layers} == {33}
    assert torch.equal(found[0], found[2])
    whole = session.step_answers(session.model, *session.step_inputs(1))
    torch.testing.assert_close(found[0], whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_generation_starts_from_nothing_and_writes_what_a_pass_over_all_gives(files: Files, kind: str) -> None:
    session = made(files["causal-lm"], "causal-lm", "step=generate", f"cache={kind}", "new_tokens=5")
    session.prepare(3)
    assert (session.cell.title, session.cell.rows) == ("generate 2 x 32 + 5 float32", 2 * 36)
    first = outputs(session, 1)
    outputs(session, 2)
    logits, chosen = outputs(session, 1)
    assert same(first, (logits, chosen))
    assert logits.shape == (2, 5, 256)
    assert torch.equal(chosen, logits.argmax(-1))
    whole = session.step_answers(session.model, *session.step_inputs(1))
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_window_is_back_at_its_context_before_the_next_step(files: Files, kind: str) -> None:
    """Layers that look at few tokens only count what they have seen beside it."""
    config = "{model_type: mistral, vocab_size: 256, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4,"
    config += " num_key_value_heads: 2, intermediate_size: 128, sliding_window: 64}"
    fields = ("step=decode", f"cache={kind}", "model.weights=random", f"model.config={config}")
    session = made(files["causal-lm"], "causal-lm", *fields)
    session.prepare(3)
    first = outputs(session, 1)
    outputs(session, 2)
    assert same(first, outputs(session, 1))
    torch.testing.assert_close(
        first[0], session.step_answers(session.model, *session.step_inputs(1)), rtol=1e-4, atol=1e-5
    )


def test_an_encoder_decoder_is_no_encoder(files: Files) -> None:
    with pytest.raises(UsageError, match="t5 has a decoder as well: take seq2seq-lm"):
        made(files["seq2seq-lm"], "feature-extraction", "task=feature-extraction")


def test_features_at_padding_are_zeros_and_the_mask_is_obeyed(files: Files) -> None:
    session = opened(files["feature-extraction"], "feature-extraction", "forward")
    ids, mask = session.batch(4)
    assert 0 < int(mask.sum()) < mask.numel()
    features = session.answers(session.model, ids, mask)
    assert bool((features[mask == 0] == 0).all())
    other = session.answers(session.model, ids.where(mask == 1, 7), mask)
    torch.testing.assert_close(features, other, rtol=1e-5, atol=1e-6)


@every_task
@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ("num_hiden_layers=2", r"has no field 'num_hiden_layers'; did you mean 'num_hidden_layers'\?"),
        ("quite_other=2", "has no field 'quite_other'; see the fields of "),
    ],
)
def test_a_misspelt_field_of_the_models_config_is_never_passed_over(
    files: Files, name: str, field: str, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        made(files[name], name, f"model.config.{field}")


@pytest.mark.parametrize("field", ["hidden_size=-8", "num_attention_heads=0", "vocab_size=none"])
def test_numbers_that_make_no_model_are_the_callers_mistake(tiny_workload: Path, field: str) -> None:
    overrides = ["model.weights=random", "model.config.model_type=llama", f"model.config.{field}"]
    with pytest.raises(UsageError, match=r"model\.config: "):
        made(tiny_workload, "causal-lm", *overrides)


def test_weights_of_another_kind_of_model_are_the_callers_mistake(files: Files) -> None:
    with pytest.raises(UsageError, match=r"model\.config does not fit the weights of model"):
        made(files["causal-lm"], "image-classification", "task=image-classification", "step=forward")
