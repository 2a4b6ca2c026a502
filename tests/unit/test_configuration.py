from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from e2e.configuration import BUILT_IN_POLICIES, load_policy, load_workload
from e2e.errors import UsageError
from e2e.schema.policy import Policy
from e2e.schema.workload import cells_of

VALID = """\
# a first comment
name: small
task: causal-lm
step: prefill
model:
  id: folder
  dtype: float32
data: {path: text.txt}
cells: {batch: [1], sequence: [16, 32]}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "small.yaml").write_text(VALID)
    return tmp_path


def refusal(path: str, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_workload(path, overrides)
    return caught.value.message


def policy_refusal(name: str | None) -> str:
    with pytest.raises(UsageError) as caught:
        load_policy(name)
    return caught.value.message


def write(folder: Path, text: str) -> str:
    (folder / "w.yaml").write_text(text)
    return "w.yaml"


def test_a_shipped_workload_is_found_by_its_bare_name(here: Path) -> None:
    loaded = load_workload("small")
    assert here / "workloads" / "small.yaml" == loaded.path
    assert loaded.workload.cells.sequence == [16, 32]
    assert loaded.overrides == {}


def test_a_path_works_and_the_digest_is_of_the_file(here: Path) -> None:
    by_path, by_name = load_workload("workloads/small.yaml"), load_workload("small", ["cells.batch=[4]"])
    assert by_path.sha256 == by_name.sha256
    assert by_path.workload != by_name.workload


def test_every_mistake_is_shown_at_once_with_its_line(here: Path) -> None:
    text = VALID.replace("step: prefill", "step: prefil").replace("  dtype:", "  dtyp:").replace("[1]", "[x]")
    said = refusal(write(here, text))
    kinds = "'prefill', 'decode', 'generate', 'train' or 'forward'"
    assert f"w.yaml:4: step: must be {kinds}, not 'prefil'; did you mean 'prefill'?" in said
    assert "w.yaml:7: model.dtyp: no such field; did you mean 'dtype'?" in said
    assert "w.yaml:5: model.dtype: missing; it is required" in said
    assert "w.yaml:9: cells.batch[0]: must be a valid integer, not 'x'" in said


def test_a_threshold_in_a_workload_is_sent_to_the_policy_file(here: Path) -> None:
    assert "thresholds (margin) belong in a policy file" in refusal(write(here, VALID + "margin: 0.02\n"))


def test_true_is_not_a_number_and_quoted_digits_are_text(here: Path) -> None:
    said = refusal(write(here, VALID.replace("batch: [1]", 'batch: [true, "8"]')))
    assert "cells.batch[0]: must be a valid integer, not True" in said
    assert "cells.batch[1]: must be a valid integer, not '8'" in said


def test_a_key_given_twice_is_refused(here: Path) -> None:
    assert "w.yaml:10: step: given twice (first on line 4)" in refusal(write(here, VALID + "step: train\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the workload is empty"),
        ("# only a comment\n", "the workload is empty"),
        ("- a\n- b\n", "is a mapping of fields, not a list"),
        ("just words\n", "not a single value"),
        ("a: [1\n", "not readable as YAML"),
        ("a: &x [1]\nb: *x\n", "anchors and aliases are not allowed"),
        ("a: 1\n---\nb: 2\n", "not readable as YAML"),
        ("a: !!python/object:os.system {}\n", "tags such as"),
        ("a: " + "[" * 5000, "nested more than"),
        ('name: "\\ud800"\n', "half of a character pair"),
        ('name: "\\U00ffffff"\n', "not readable as YAML"),
        ("a: " + "9" * 5000 + "\n", "digits"),
        ("x" * 300_000, "too large"),
    ],
)
def test_a_file_that_is_no_workload_is_refused_in_words(here: Path, text: str, words: str) -> None:
    assert words in refusal(write(here, text))


def test_a_binary_file_a_folder_and_a_device_are_refused(here: Path) -> None:
    (here / "w.yaml").write_bytes(b"\x7fELF\x00\xff")
    assert "is not text in UTF-8" in refusal("w.yaml")
    (here / "w.yaml").write_bytes(b"ELF\x00")
    assert "is a binary file" in refusal("w.yaml")
    assert "is a folder; a workload is one YAML file: small.yaml" in refusal("workloads")
    assert "is not a regular file" in refusal("/dev/zero")
    assert "is not a path" in refusal("a\0b")
    assert "File name too long" in refusal("a" * 300)


def test_a_missing_file_names_the_nearest_one(here: Path) -> None:
    assert refusal("smal") == "no workload 'smal'; did you mean 'small'?"
    assert "did you mean 'workloads/small.yaml'?" in refusal("workloads/smal.yaml")
    assert refusal("zzz") == f"no workload 'zzz'; looked in {here} and in workloads, which has small"
    assert refusal("workloads/zzz.yaml") == "no workload 'workloads/zzz.yaml'; workloads has small.yaml"
    assert refusal("nowhere/zzz") == "no workload 'nowhere/zzz'; nowhere has no YAML file"
    assert policy_refusal("zzz").endswith("e2e/policies, which has demo, profile, selftest, standard")


def test_without_a_folder_of_workloads_the_folder_searched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        refusal("small") == f"no workload 'small'; looked in {tmp_path}, which has no folder workloads; give its path"
    )


@pytest.mark.parametrize("field", ["batch", "sequence"])
def test_a_cell_given_twice_is_refused(here: Path, field: str) -> None:
    said = refusal("small", f"cells.{field}=[1, 8, 8]")
    assert said == f"--set cells.{field}=[1, 8, 8]: cells.{field}: 8 is given twice, and a cell is measured once"
    assert "cells.batch: must be at least 1, not 0" in refusal("small", "cells.batch=[0]")


def test_overrides_are_typed_laid_over_and_reported(here: Path) -> None:
    overrides = ["model.weights=random", "cells.batch=[2, 4]", "model.config.num_hidden_layers=3"]
    loaded = load_workload("small", overrides)
    assert loaded.workload.model.weights == "random"
    assert loaded.workload.cells.batch == [2, 4]
    assert loaded.workload.model.config == {"num_hidden_layers": 3}
    assert loaded.overrides == {
        "model.weights": "random", "cells.batch": [2, 4], "model.config.num_hidden_layers": 3,
    }  # fmt: skip


def test_every_bad_override_is_shown_at_once_and_by_name(here: Path) -> None:
    said = refusal("small", "modle.dtype=x", "dtype=float16", "foo", "cells.batch=8", "name.x=1", "step=[")
    assert "--set modle.dtype=x: no such field; did you mean 'model.dtype'?" in said
    assert "--set dtype=float16: no such field; did you mean 'model.dtype'?" in said
    assert "--set foo: write key.path=value" in said
    assert "--set cells.batch=8: cells.batch: must be a valid array, not 8; write cells.batch=[8]" in said
    assert "--set name.x=1: 'name' has no fields of its own" in said
    assert "--set step=[" in said
    assert "set twice" in refusal("small", "step=train", "step=decode")


def test_an_override_does_not_hide_mistakes_in_the_file(here: Path) -> None:
    said = refusal(write(here, VALID + "stepp: 1\n"), "model.attention=sdap")
    assert "--set model.attention=sdap: model.attention: must be 'sdpa' or 'eager'" in said
    assert "w.yaml:10: stepp: no such field; did you mean 'step'?" in said


def test_the_policy_is_the_callers_else_the_workloads_else_standard(here: Path) -> None:
    (here / "workloads" / "strict.yaml").write_text("name: strict\nmargin: 0.05\n")
    named = load_workload(write(here, VALID + "policy: workloads/strict.yaml\n"))
    assert load_policy(None, workload=load_workload("small")).name == "standard"
    assert load_policy(None, workload=named).margin == 0.05
    assert load_policy("demo", workload=named).name == "demo"


def test_every_built_in_policy_is_valid() -> None:
    files = sorted(BUILT_IN_POLICIES.glob("*.yaml"))
    assert [load_policy(file.stem).name for file in files] == ["demo", "profile", "selftest", "standard"]
    assert Policy(name="standard") == load_policy("standard")


def test_fields_of_a_policy_that_do_not_fit_each_other_are_refused_on_their_lines(here: Path) -> None:
    lines = [
        "name: p",
        "opponents: [best_pytorch, fastest, 'kernel:']",
        "modes: [eager]",
        "required_modes: [compile]",
        "looks: [8, 5]",
        "blocks: 30",
        "max_blocks: 20",
        "pins: {workload_sha256: 123abc, stage: all}",
    ]
    (here / "p.yaml").write_text("\n".join(lines))
    said = policy_refusal("p.yaml")
    assert "p.yaml:2: opponents[1]: must be 'best_pytorch', 'as_shipped' or 'kernel:SPEC', not 'fastest'" in said
    assert "p.yaml:2: opponents[2]: must be" in said
    assert "p.yaml:4: required_modes: must be among `modes`, and compile is not" in said
    assert "p.yaml:5: looks: must rise" in said
    assert "p.yaml:7: max_blocks: `max_blocks` (20) is below `blocks` (30)" in said
    assert "p.yaml:8: pins.workload_sha256" in said
    assert "p.yaml:8: pins.stage: must be 'build'" in said
    (here / "p.yaml").write_text("name: p\nopponents: [as_shipped]\n")
    assert "p.yaml:1: `decides` must be one of `opponents`, and 'best_pytorch' is not" in policy_refusal("p.yaml")
    (here / "p.yaml").write_text("name: p\nopponents: ['kernel:adopted.cu']\ndecides: 'kernel:adopted.cu'\n")
    assert load_policy("p.yaml").decides == "kernel:adopted.cu"


def test_a_bad_policy_is_refused_with_lines(here: Path) -> None:
    (here / "p.yaml").write_text("name: p\nlooks: []\nmargen: 1\n")
    said = policy_refusal("p.yaml")
    assert "p.yaml:2: looks:" in said
    assert "p.yaml:3: margen: no such field; did you mean 'margin'?" in said
    assert policy_refusal("standrd") == "no policy 'standrd'; did you mean 'standard'?"


# ---- Whatever is in the file, the only exception is the one with a message.

KEYS = st.sampled_from(
    ["name", "task", "step", "model", "data", "cells", "train", "policy", "batch", "sequence", "id", "dtype",
     "config", "weights", "path", "looks", "margin", "modes", "decides", "opponents", "blocks", "<<", "0", ""]
)  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
    | st.binary(max_size=3)
    | st.sampled_from(["prefill", "float32", "eager", "causal-lm", "random", "1e-5", "yes", "0x10"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def survives(content: bytes, overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "any.yaml"
        file.write_bytes(content)
        for load in (lambda: load_workload(str(file), overrides), lambda: load_policy(str(file))):
            with contextlib.suppress(UsageError):
                load()


@limits(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_usage_error_at_worst(text: str) -> None:
    survives(text.encode("utf-8", "surrogatepass"), [])


@limits(max_examples=50, deadline=None)
@given(st.binary(max_size=100))
def test_any_bytes_are_a_usage_error_at_worst(content: bytes) -> None:
    survives(content, [])


@limits(max_examples=200, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_fields_are_a_usage_error_at_worst(changes: dict[str, Any]) -> None:
    survives(yaml.safe_dump({**yaml.safe_load(VALID), **changes}).encode(), [])


@limits(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_to_a_valid_file_is_a_usage_error_at_worst(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(VALID)))
    end = data.draw(st.integers(start, min(len(VALID), start + 20)))
    put = data.draw(st.text(max_size=6) | st.sampled_from(["\t", ": ", "- ", "&a ", "*a", "!!", "{", "\n", "? ", "|"]))
    survives((VALID[:start] + put + VALID[end:]).encode("utf-8", "surrogatepass"), [])


@limits(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=20) | st.builds("{}.{}={}".format, KEYS, KEYS, st.text(max_size=8)), max_size=3))
def test_any_override_is_a_usage_error_at_worst(overrides: list[str]) -> None:
    survives(VALID.encode(), overrides)


def test_only_whoever_asks_for_waivers_gets_them(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "name: waiving\nwaivers:\n  - {code: throttled, reason: the rack is slow until January, until: 2027-01-31}\n"
    )
    assert [] == load_policy(str(file)).waivers
    (waiver,) = load_policy(str(file), heeds_waivers=True).waivers
    assert ("throttled", "2027-01-31") == (waiver.code, waiver.until.isoformat())


def test_cells_are_every_combination_of_the_lists_and_each_has_its_model_and_step(here: Path) -> None:
    lists = ["cells.dtype=[float32, bfloat16]", "cells.step=[prefill, decode, generate]", "new_tokens=4"]
    workload = load_workload("small", lists).workload
    cells = cells_of(workload)
    assert len(cells) == len(set(cells)) == 2 * 3 * len(workload.cells.sequence)
    assert {cell.new_tokens for cell in cells if cell.step == "generate"} == {4}
    assert {cell.new_tokens for cell in cells if cell.step != "generate"} == {0}
    assert [workload.model_in(cell).dtype for cell in cells] == [cell.dtype for cell in cells]
    assert not workload.trains and load_workload("small", ["cells.step=[prefill, train]"]).workload.trains
    assert cells_of(load_workload("small").workload)[0].dtype == load_workload("small").workload.model.dtype


@pytest.mark.parametrize("field", ["batch=[2, 2]", "dtype=[float32, float32]", "step=[decode, decode]"])
def test_a_cell_that_is_given_twice_is_refused(here: Path, field: str) -> None:
    with pytest.raises(UsageError, match="is given twice, and a cell is measured once"):
        load_workload("small", [f"cells.{field}"])
