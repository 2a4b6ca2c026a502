"""Texts, rows and images: what is read, how it is drawn, and what is said of files that do not fit."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import DataSpec, ModelSpec
from e2e.tasks._images import Images, Shape
from e2e.tasks._model import Source
from e2e.tasks._sounds import Sounds
from e2e.tasks._texts import MOST_RECORDS, read_samples, read_text
from e2e.tasks._tokens import Rows
from tests.specimens import write_sound

torch.set_num_threads(1)

RANDOM = ModelSpec.model_validate({"weights": "random", "dtype": "float32", "config": {"model_type": "bert"}})
SHAPE = Shape(1, 4, 4)


def data(path: str, **fields: Any) -> DataSpec:
    return DataSpec.model_validate({"path": path, **fields})


# ---- Texts


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("a.txt", "one\n\n  \ntwo three\n", None),
        ("a.jsonl", '{"text": "one"}\n\n{"text": " "}\n{"text": "two three", "other": 1}\n', None),
        ("a.jsonl", '{"said": "one"}\n{"said": "two three"}\n', "said"),
    ],
)
def test_samples_are_lines_or_records(tmp_path: Path, name: str, content: str, field: str | None) -> None:
    (tmp_path / name).write_text(content)
    assert read_samples(data(name, field=field), tmp_path) == ["one", "two three"]


def test_a_plain_text_stays_as_it_is_and_records_are_put_apart(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert read_text(data("a.txt"), tmp_path) == "one\n\ntwo\n"
    assert read_text(data("a.jsonl"), tmp_path) == "one\n\ntwo"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2 is not JSON"),
        ("a.jsonl", b'{"words": "a"}\n', r"a\.jsonl:1 has no text 'text'; it has: words"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl:1 has no text 'text'; it has: list"),
        ("a.jsonl", b"\n", "holds no text"),
        ("a.txt", b"\xff\xfe", "is not text in UTF-8"),
        ("b.txt", None, "no file"),
    ],
)
def test_a_file_that_is_no_text_is_the_callers_mistake(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_samples(data(name), tmp_path)


def test_parquet_without_its_reader_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match="pip install pyarrow"):
        read_samples(data("a.parquet"), tmp_path)


# ---- Rows


def rows(folder: Path, *lines: str, length: int = 8) -> Rows:
    (folder / "a.txt").write_text("\n".join(lines))
    return Rows.read(data("a.txt"), Source(RANDOM, folder), vocabulary=256, length=length)


def test_rows_are_samples_with_padding_behind_and_a_mask_over_them(tmp_path: Path) -> None:
    ids, mask = rows(tmp_path, "abc").batch(3, 8, 1)
    assert ids.shape == mask.shape == (3, 8)
    assert mask.tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]] * 3
    assert bool((ids[:, 3:] == 0).all())
    assert ids[:, 0].tolist() == [ord("a")] * 3


def test_a_factorys_model_has_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    source = Source(ModelSpec.model_validate({"factory": "own.py:build", "dtype": "float32"}), tmp_path)
    with pytest.raises(UsageError, match="say `tokenizer: bytes`"):
        Rows.read(data("a.txt"), source, vocabulary=256, length=8)
    assert Rows.read(data("a.txt", tokenizer="bytes"), source, vocabulary=256, length=8).batch(1, 8, 1)[0].shape == (
        1,
        8,
    )


def test_a_sample_is_cut_at_a_rows_length_and_the_share_of_text_is_said(tmp_path: Path) -> None:
    made = rows(tmp_path, "a" * 100, "bbbb")
    assert "2 samples; 75% of a row is text" in made.label
    _, mask = made.batch(20, 8, 1)
    assert set(mask.sum(-1).tolist()) == {4, 8}


# ---- Images


def images(folder: Path, path: str, shape: Shape = SHAPE, **fields: Any) -> Images:
    return Images.read(data(path, **fields), Source(RANDOM, folder), shape=shape)


@pytest.mark.parametrize("form", [(5, 4, 4), (5, 4, 4, 1), (5, 9, 7), (5, 2, 2, 1)])
def test_an_array_of_images_is_brought_to_the_models_shape(tmp_path: Path, form: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", images=np.full(form, 255, dtype=np.uint8))
    made = images(tmp_path, "a.npz")
    batch = made.batch(3, 1)
    assert batch.shape == (3, 1, 4, 4)
    assert made.label == "5 images of a.npz"
    assert 0.7 <= float(batch.min()) and float(batch.max()) <= 1.0, "white is 1 after (x - 0.5) / 0.5, at most as pale"


def test_numbers_are_taken_as_from_0_to_1(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pixels=np.zeros((2, 4, 4), dtype=np.float64))
    assert float(images(tmp_path, "a.npz", field="pixels").batch(1, 1).max()) < 0


def test_a_grey_image_fills_every_channel(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.arange(32, dtype=np.uint8).reshape(2, 4, 4))
    batch = images(tmp_path, "a.npz", Shape(3, 4, 4)).batch(2, 1)
    assert torch.equal(batch[:, 0], batch[:, 2])


def test_a_folder_of_images_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "shots" / "inner").mkdir(parents=True)
    Image.new("RGB", (6, 5), (255, 0, 0)).save(tmp_path / "shots" / "inner" / "b.png")
    Image.new("L", (4, 4), 128).save(tmp_path / "shots" / "a.png")
    made = images(tmp_path, "shots", Shape(3, 4, 4))
    assert made.label == "2 images of shots"
    assert made.batch(4, 1).shape == (4, 3, 4, 4)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("none.npz", "no file"),
        ("none", "no folder"),
        ("empty", "no images in"),
        ("flat.npz", r"images has the shape \(4,\)"),
        ("other.npz", "has no array 'images'; it has: pixels"),
        ("broken.npz", "is no .npz"),
        ("colour.npz", "images have 3 channels, and the model takes 1"),
        ("shots", r"a\.png cannot be read"),
    ],
)
def test_data_that_is_no_images_is_the_callers_mistake(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "a.png").write_bytes(b"no image")
    (tmp_path / "broken.npz").write_bytes(b"PK no archive")
    np.savez(tmp_path / "flat.npz", images=np.zeros(4))
    np.savez(tmp_path / "other.npz", pixels=np.zeros((1, 4, 4)))
    np.savez(tmp_path / "colour.npz", images=np.zeros((1, 4, 4, 3)))
    with pytest.raises(UsageError, match=words):
        images(tmp_path, path)


# ---- Sounds


def test_sounds_are_features_of_the_models_length(tmp_path: Path) -> None:
    write_sound(tmp_path / "a.wav", np.sin(np.arange(8000) * 0.1) * 2**14)
    made = Sounds.read(data("."), Source(RANDOM, tmp_path), mels=16, frames=100)
    one, other = made.batch(2, 1), made.batch(2, 2)
    assert one.shape == (2, 16, 100)
    assert not torch.equal(one, other)
    assert float(one[0, :, :40].mean()) > float(one[0, :, 60:].mean()), "half a second of sound, then silence"


@pytest.mark.parametrize(
    ("path", "words"),
    [("none", "no folder"), ("empty", r"no \.wav files in"), ("slow", "has 8000 Hz"), ("broken", "cannot be read")],
)
def test_data_that_is_no_sound_is_the_callers_mistake(tmp_path: Path, path: str, words: str) -> None:
    for name in ("empty", "slow", "broken"):
        (tmp_path / name).mkdir()
    write_sound(tmp_path / "slow" / "a.wav", np.zeros(8), rate_hz=8000)
    (tmp_path / "broken" / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(UsageError, match=words):
        Sounds.read(data(path), Source(RANDOM, tmp_path), mels=16, frames=100)


# ---- The hub's data sets


class Records(list[dict[str, Any]]):
    """As much of a data set as is asked of one."""

    def select(self, places: range) -> Records:
        return Records(self[place] for place in places)


class DataSets(ModuleType):
    """Stands for the package, which CI does not install."""

    def __init__(self, found: Records | Exception) -> None:
        super().__init__("datasets")
        self.__spec__ = ModuleSpec("datasets", None)
        self.found = found
        self.asked: tuple[str, str, str | None] | None = None

    def disable_progress_bars(self) -> None:
        """There are none."""

    def load_dataset(self, name: str, *, split: str, revision: str | None) -> Records:
        self.asked = (name, split, revision)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_a_data_set_of_the_hub_gives_its_first_records(monkeypatch: pytest.MonkeyPatch) -> None:
    package = DataSets(Records({"body": f"text {number}"} for number in range(MOST_RECORDS + 5)))
    monkeypatch.setitem(sys.modules, "datasets", package)
    asked = data("hf:a/b", field="body", split="test", revision="abc")
    found = read_samples(asked, Path())
    assert ("a/b", "test", "abc") == package.asked
    assert (MOST_RECORDS, "text 0") == (len(found), found[0])
    assert read_text(asked, Path()).startswith("text 0\n\ntext 1\n\n")


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        (ValueError('Unknown split "tran"'), UsageError, 'data.path: hf:a/b: Unknown split "tran"'),
        (FileNotFoundError("no such data set"), UsageError, "no such data set"),
        (ConnectionError("the hub is away"), EnvironmentFault, "the data set a/b cannot be read: the hub is away"),
        (Records([{"other": "x"}]), UsageError, "hf:a/b, record 0 has no text 'text'; it has: other"),
        (Records([]), UsageError, "hf:a/b holds no text"),
    ],
)
def test_what_is_wrong_with_a_data_set_of_the_hub_is_said(
    monkeypatch: pytest.MonkeyPatch, found: Records | Exception, kind: type[Exception], words: str
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", DataSets(found))
    with pytest.raises(kind, match=words):
        read_samples(data("hf:a/b"), Path())


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match="pip install datasets"):
        read_samples(data("hf:a/b"), Path())
