"""Every kernel format knows its own and leaves the rest alone."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from e2e import registry
from e2e.errors import UsageError
from e2e.reading import read_kernel

REPOSITORY = Path(__file__).parents[2]
THEIRS = REPOSITORY / "tests" / "formats"
EXAMPLES = {
    "autokernel": str(THEIRS / "autokernel" / "kernel.py"),
    "backendbench": str(THEIRS / "backendbench" / "rms_norm__default"),
    "block": str(REPOSITORY / "kernels" / "rmsnorm.cpp"),
    "callable": "json:dumps",
    "hf_kernels": f"{THEIRS / 'hf_kernels' / 'small_norms'}#SmallRMSNorm",
    "kernelbench": str(THEIRS / "kernelbench" / "rmsnorm.py"),
    "robust_kbench": str(THEIRS / "robust_kbench" / "rmsnorm" / "kernel.cpp"),
    "solution": str(next((THEIRS / "flashinfer_bench").glob("solutions/**/*.json"))),
}
FORMATS = registry.names("formats")
every_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(autouse=True)
def _own_cache(e2e_cache: Path) -> None:
    """Some unpack sources into it."""


def test_every_format_has_an_example_here() -> None:
    assert list(EXAMPLES) == FORMATS


@every_format
def test_its_example_is_read_by_it(name: str) -> None:
    kernel = read_kernel(EXAMPLES[name], op="rms_norm")
    assert kernel.format == name
    assert kernel.spec == EXAMPLES[name]
    assert kernel.manifest.op == "rms_norm"
    assert kernel.manifest.binding in registry.names("builders")


@every_format
def test_the_examples_of_others_are_not_its_own(name: str) -> None:
    """But for `block`, which reads any source, and is asked last for that reason."""
    plugin = registry.load("formats", name)
    others = [spec for other, spec in EXAMPLES.items() if other != name]
    if name != "block":
        assert [plugin.read(spec, op="rms_norm") for spec in others] == [None] * len(others)


@every_format
@pytest.mark.parametrize("spec", ["", " ", "\0", "#", "a#b", ":", "x" * 5000, "missing.py", "missing.json", "a.txt"])
def test_what_is_nothing_is_refused_or_left_to_others(name: str, spec: str) -> None:
    with contextlib.suppress(UsageError):
        assert registry.load("formats", name).read(spec, op=None) is None


@every_format
def test_its_first_words_fit_on_a_line(name: str) -> None:
    assert 20 < len(registry.summary("formats", name)) <= 110
