from __future__ import annotations

import hashlib
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.errors import EnvironmentFault, StoredRunError, UsageError
from e2e.judge import judge
from e2e.schema.__main__ import FILE, schema_text
from e2e.schema.evidence import Segment
from e2e.schema.result import CellResult
from e2e.store import DIGEST, RESULT, SAMPLES, UNFINISHED, Run, find, load, to_json
from tests import results


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    run = Run.create(tmp_path / "results", "llama-infer")
    run.finish(results.result())
    return run.folder


def refusal(path: Path | str) -> str:
    with pytest.raises(StoredRunError) as caught:
        load(path)
    return caught.value.message


def edit(folder: Path, change: Callable[[str], str], *, sign: bool) -> None:
    """Change result.json; `sign` also makes the digest fit, as somebody who forges would."""
    text = change((folder / RESULT).read_text())
    (folder / RESULT).write_text(text)
    if sign:
        (folder / DIGEST).write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  {RESULT}\n")


def test_what_was_stored_is_loaded_exactly(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "llama-infer")
    finished = run.finish(results.result())
    assert finished == load(run.folder)
    assert results.segments() == load(run.folder).cells[0].evidence.segments


def test_segments_go_back_to_their_cells(tmp_path: Path) -> None:
    seconds = (0.1, 1 / 3, 5e-324)
    cells = [
        CellResult(
            cell=results.cell(sequence=16 * (1 + index)),
            evidence=results.evidence(segments=[results.segments()[0].model_copy(update={"seconds": value})]),
            verdict=results.verdict(),
        )
        for index, value in enumerate(seconds)
    ]
    run = Run.create(tmp_path, "sweep")
    run.finish(results.result(cells))
    assert list(seconds) == [cell.evidence.segments[0].seconds for cell in load(run.folder).cells]


def test_a_run_is_found_by_folder_by_file_and_by_bare_id(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stored.parent.parent)
    expected = load(stored)
    assert expected == load(stored / RESULT)
    assert expected == load(stored.name)
    assert expected == load(f"results/{stored.name}/")
    monkeypatch.chdir(stored)
    assert expected == load(RESULT)
    assert expected == load(".")


def test_the_result_is_strict_json_without_segments(stored: Path) -> None:
    raw = json.loads((stored / RESULT).read_text(), parse_constant=pytest.fail)
    assert raw["cells"][0]["evidence"]["segments"] == []
    assert hashlib.sha256((stored / SAMPLES).read_bytes()).hexdigest() == raw["samples_sha256"]
    assert raw["schema_version"] == "e2e.result/1"


def test_an_edited_result_is_refused(stored: Path) -> None:
    edit(stored, lambda text: text.replace('"refuted"', '"confirmed"', 1), sign=False)
    assert "it was edited after the run" in refusal(stored)


def test_an_edited_sample_is_refused(stored: Path) -> None:
    lines = (stored / SAMPLES).read_text().splitlines(keepends=True)
    (stored / SAMPLES).write_text("".join([*lines[:3], *lines[4:]]))
    assert "it was edited or cut short" in refusal(stored)


def test_a_truncated_result_is_refused(stored: Path) -> None:
    (stored / RESULT).write_bytes((stored / RESULT).read_bytes()[:1000])
    assert "is not whole, strict JSON" in refusal(stored)
    (stored / RESULT).write_bytes(b"")
    assert "is not whole, strict JSON" in refusal(stored)


def test_not_a_number_is_refused(stored: Path) -> None:
    edit(stored, lambda text: text.replace('"seconds": 612.0', '"seconds": NaN'), sign=True)
    assert "is not whole, strict JSON" in refusal(stored)


def test_another_schema_is_refused_by_name(stored: Path) -> None:
    edit(stored, lambda text: text.replace("e2e.result/1", "e2e.result/9"), sign=True)
    assert "has schema 'e2e.result/9'; this e2e reads 'e2e.result/1' only" in refusal(stored)


@pytest.mark.parametrize("text", ["[]", "{}", '"text"', "3"])
def test_json_that_is_no_result_is_refused(stored: Path, text: str) -> None:
    edit(stored, lambda _: text, sign=True)
    assert "not a result of e2e" in refusal(stored)


def test_an_unknown_field_is_refused_by_place(stored: Path) -> None:
    edit(stored, lambda text: text.replace('"evidence": {', '"evidence": {"extra": 1,'), sign=True)
    assert "is not a valid result: cells.0.evidence.extra" in refusal(stored)


@pytest.mark.parametrize("name", [DIGEST, SAMPLES])
def test_a_missing_piece_is_named(stored: Path, name: str) -> None:
    (stored / name).unlink()
    assert f"{name} is missing" in refusal(stored)


def test_a_killed_run_is_told_from_a_folder_that_is_no_run(tmp_path: Path) -> None:
    assert "not a run" in refusal(tmp_path)
    run = Run.create(tmp_path, "killed")
    assert "not a run, or one that was stopped before it began" in refusal(run.folder)
    run.write_text(UNFINISHED, "{}")
    assert "was stopped before it ended" in refusal(run.folder)
    assert f"`e2e validate --resume {run.folder}` finishes it" in refusal(run.folder)
    with run.held():
        assert "is still going" in refusal(run.folder)


def test_what_does_not_exist_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "no run" in refusal("no-such-run")
    assert "is not a run" in refusal(tmp_path / "file")
    assert "cannot be looked for" in refusal("x" * 5000)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0,verdict", "7,verdict"),
        ("0,verdict", "0,warm"),
        ("cell,phase", "cell,face"),
        ("\n0,", "\nx,"),
        ("0,", '"'),
    ],
)
def test_damaged_samples_are_refused_even_when_signed(stored: Path, old: str, new: str) -> None:
    content = (stored / SAMPLES).read_text().replace(old, new).encode()
    before = hashlib.sha256((stored / SAMPLES).read_bytes()).hexdigest()
    (stored / SAMPLES).write_bytes(content)
    edit(stored, lambda text: text.replace(before, hashlib.sha256(content).hexdigest()), sign=True)
    assert "not a sample" in refusal(stored)


def test_samples_of_the_first_method_are_read_with_what_it_did_not_see_absent(stored: Path) -> None:
    """Its columns were these nine; `gate` must be able to say that the run is stale."""
    before = (stored / SAMPLES).read_bytes()
    older = "".join(f"{','.join(line.split(',')[:9])}\n" for line in before.decode().splitlines()).encode()
    (stored / SAMPLES).write_bytes(older)
    digests = [hashlib.sha256(content).hexdigest() for content in (before, older)]
    edit(stored, lambda text: text.replace(*digests), sign=True)
    assert results.segments() == load(stored).cells[0].evidence.segments


def test_whoever_reads_between_the_files_of_a_second_finish_is_not_told_of_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path, "twice")
    first = run.finish(results.result())
    places: list[str] = []

    def looked_at(self: Path, target: Path) -> Path:
        places.append(target.name)
        assert load(run.folder).repeats in (None, "another")
        return rename(self, target)

    rename = Path.replace
    monkeypatch.setattr(Path, "replace", looked_at)
    second = run.finish(first.model_copy(update={"repeats": "another"}))
    assert [SAMPLES, DIGEST, RESULT, DIGEST] == places
    assert second == load(run.folder)
    assert 1 == len((run.folder / DIGEST).read_text().splitlines())


def test_a_run_that_goes_on_loses_what_was_half_written_and_nothing_else(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "killed")
    run.finish(results.result())
    run.write_text("kernel/k.py", "code")
    for name in (".result.json.0123456789ab", "kernel/.k.py.0123456789ab"):
        (run.folder / name).write_text("half")
    run.clear()
    assert ["kernel", "kernel/k.py"] == sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*"))


def test_a_run_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "held")
    with run.held(), pytest.raises(UsageError, match="is still going, in another process"), Run(run.folder).held():
        pass
    with run.held():
        pass


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    names = {Run.create(tmp_path, "Same Name / ../x").run_id for _ in range(20)}
    assert len(names) == 20
    assert all("-same-name-..-x-" in name and "/" not in name for name in names)


def test_a_file_of_the_run_cannot_lead_out_of_it(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    run.write_text("kernels/rmsnorm.cu", "code")
    assert (run.folder / "kernels" / "rmsnorm.cu").read_text() == "code"
    for name in ("../out", "/tmp/out", "kernels/../../out"):
        with pytest.raises(ValueError, match="leads out"):
            run.write_text(name, "x")


def test_no_temporary_file_stays_and_modes_follow_the_umask(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    run.write_text("report.md", "x")
    run.write_text("report.md", "y")
    assert [path.name for path in run.folder.iterdir()] == ["report.md"]
    current = os.umask(0)
    os.umask(current)
    assert 0o666 & ~current == (run.folder / "report.md").stat().st_mode & 0o777


def test_a_result_that_cannot_be_stored_again_stays_as_it_was(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "x")
    first = run.finish(results.result())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((run.folder / RESULT).stat().st_size, limits[1]))
    try:
        with pytest.raises(EnvironmentFault, match=f"--out {tmp_path}: cannot write results there: File too large"):
            run.finish(first.model_copy(update={"command": ["longer"] * 99}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert first == load(run.folder)


def test_out_that_is_a_file_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        Run.create(tmp_path / "results", "x")
    with pytest.raises(UsageError, match="cannot write results there"):
        Run.create(tmp_path / "results" / "deeper", "x")


def test_the_published_schema_is_the_records() -> None:
    """After a change of a record: `python -m e2e.schema`."""
    published = json.loads(FILE.read_text(encoding="utf-8"))
    assert json.loads(schema_text()) == published
    assert set(json.loads(to_json(results.result()))) == set(published["properties"])
    assert False is published["additionalProperties"]
    assert "seed" in published["required"]
    assert "regions" not in published["required"], "a run of before it was recorded has none"


def test_loading_and_judging_a_large_run_is_quick(tmp_path: Path) -> None:
    many = [
        Segment(
            phase="verdict",
            worker=worker,
            block=block,
            position=position,
            arm=arm,
            steps=3,
            seconds=0.1,
            seed=1,
        )
        for worker in range(12)
        for block in range(20)
        for position, arm in enumerate([*results.STEPS_S, *reversed(results.STEPS_S)])
    ]
    cell = CellResult(cell=results.cell(), evidence=results.evidence(segments=many), verdict=results.verdict())
    run = Run.create(tmp_path, "large")
    run.finish(results.result([cell]))
    start = time.process_time()
    loaded = load(run.folder)
    assert loaded.policy is not None
    judge(loaded.cells[0].evidence, loaded.policy)
    assert time.process_time() - start < 0.5


def test_find_gives_a_killed_runs_folder_too(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "killed")
    assert run.folder == find(run.folder)
