from __future__ import annotations

from pathlib import Path

import pytest

from e2e import registry
from e2e.listing import Row, aligned, rows
from e2e.schema.words import ReasonCode


def test_every_reason_is_listed_with_kind_and_sentence() -> None:
    found = {row.name: row.detail for row in rows("reasons")}
    assert [code.value for code in ReasonCode] == list(found)
    assert found["build_failed"] == "failed: the kernel did not build"


@pytest.mark.parametrize("kind", ["ops", "formats"])
def test_plug_ins_are_listed_by_file_name(kind: str) -> None:
    assert registry.names(kind) == [row.name for row in rows(kind)]
    assert all(row.detail for row in rows(kind))


def test_kernels_and_workloads_are_read_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "workloads").mkdir()
    block = "# /// e2e\n# op: rms_norm\n# entry: f\n# ///\n"
    (tmp_path / "kernels" / "a.py").write_text(block + "#\n# Scales rows.\nraise SystemExit('run')\n")
    (tmp_path / "kernels" / "b.cu").write_text("// Only words.\n")
    (tmp_path / "kernels" / "_hidden.py").write_text("")
    (tmp_path / "kernels" / "notes.txt").write_text("")
    (tmp_path / "workloads" / "w.yaml").write_text("# A small one.\nname: w\n")
    (tmp_path / "workloads" / "v.yaml").write_text('name: v\ndescription: "By description."\n')
    assert rows("kernels") == [
        Row("kernels/a.py", "rms_norm: Scales rows."),
        Row("kernels/b.cu", "no block: Only words."),
    ]
    assert rows("workloads") == [Row("v", "By description."), Row("w", "A small one.")]


def test_an_empty_folder_lists_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert rows("kernels") == []
    assert aligned([]) == ""


def test_columns_are_aligned() -> None:
    assert aligned([Row("a", "x"), Row("bcd", "y"), Row("e", "")]) == "a    x\nbcd  y\ne\n"
