"""Cells from a table of real lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.configuration import load_workload
from e2e.errors import UsageError
from e2e.schema.workload import Workload, cells_of

_WORKLOAD = """\
name: served
task: causal-lm
step: {step}
model: {{weights: random, dtype: float32, config: {{model_type: llama}}}}
data: {{path: synthetic}}
cells: {{batch: [2], lengths: lengths.csv{more}}}
"""


def loaded(folder: Path, text: str, *, step: str = "prefill", more: str = "") -> Workload:
    (folder / "lengths.csv").write_text(text)
    (folder / "w.yaml").write_text(_WORKLOAD.format(step=step, more=more))
    return load_workload(str(folder / "w.yaml")).workload


def table(*prompts: int, output: int | None = None) -> str:
    if output is None:
        return "prompt_tokens\n" + "".join(f"{prompt}\n" for prompt in prompts)
    return "id,prompt_tokens,output_tokens\n" + "".join(f"x,{prompt},{output}\n" for prompt in prompts)


def test_every_cell_stands_for_as_many_requests(tmp_path: Path) -> None:
    workload = loaded(tmp_path, table(500, 10, 30, 20, 900, 700, 40, 60), more=", groups: 2")
    assert [cell.sequence for cell in cells_of(workload)] == [30, 700], "medians of 10 20 30 40 and of 60 500 700 900"


def test_groups_of_one_length_are_one_cell(tmp_path: Path) -> None:
    workload = loaded(tmp_path, table(*[128] * 9, 2048))
    assert [cell.sequence for cell in cells_of(workload)] == [128]
    assert [cell.sequence for cell in cells_of(loaded(tmp_path, table(7)))] == [7]


def test_outputs_choose_what_is_generated(tmp_path: Path) -> None:
    cell = cells_of(loaded(tmp_path, table(100, 200, output=12), step="generate"))[0]
    assert (cell.sequence, cell.new_tokens) == (100, 12)
    assert cells_of(loaded(tmp_path, table(100), step="generate"))[0].new_tokens == 16


def test_the_lengths_that_were_chosen_are_what_workers_and_results_are_told(tmp_path: Path) -> None:
    workload = loaded(tmp_path, table(100, 200))
    assert cells_of(Workload.model_validate(workload.model_dump(mode="json"))) == cells_of(workload)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no column 'prompt_tokens'; it has: none"),
        ("length\n3\n", "has no column 'prompt_tokens'; it has: length"),
        ("prompt_tokens\n", "holds no lengths"),
        ("prompt_tokens\n3\nmany\n", r"lengths\.csv:3: prompt_tokens is 'many'"),
        ("prompt_tokens,output_tokens\n3,0\n", r"lengths\.csv:2: output_tokens is '0'"),
        ("prompt_tokens,output_tokens\n3\n", r"lengths\.csv:2: output_tokens is ''"),
    ],
)
def test_a_table_without_lengths_is_the_callers_mistake(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loaded(tmp_path, text)


def test_a_table_that_is_missing_and_lengths_given_twice_are_the_callers_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give `sequence` or `lengths`, not both"):
        loaded(tmp_path, table(3), more=", sequence: [4]")
    loaded(tmp_path, table(3))
    (tmp_path / "lengths.csv").unlink()
    with pytest.raises(UsageError, match=r"lengths\.csv cannot be read"):
        load_workload(str(tmp_path / "w.yaml"))


def test_a_cell_weighs_as_many_steps_as_serve_its_requests(tmp_path: Path) -> None:
    """One pass over every prompt, but a decoding step for every token after the first."""
    text = "prompt_tokens,output_tokens\n10,65\n20,5\n300,1\n400,3\n"
    workload = loaded(tmp_path, text, more=", groups: 2, step: [prefill, decode]")
    cells = [(cell.step, cell.sequence, cell.weight) for cell in cells_of(workload)]
    assert [
        ("prefill", 20, 2 / 2),
        ("prefill", 400, 2 / 2),
        ("decode", 20, (64 + 4) / 2),
        ("decode", 400, (0 + 2) / 2),
    ] == cells, "the batch of two serves two requests in a step"


def test_groups_of_one_length_weigh_what_they_do_together(tmp_path: Path) -> None:
    workload = loaded(tmp_path, table(7, 7, 7, 7, 7, 7, 90, 90), more=", groups: 4")
    assert [(7, 3.0), (90, 1.0)] == [(cell.sequence, cell.weight) for cell in cells_of(workload)]


def test_weights_beside_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`lengths` has its own weights"):
        loaded(tmp_path, table(10, 20), more=", weights: [1, 2]")
