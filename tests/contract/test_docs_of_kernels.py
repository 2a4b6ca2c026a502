"""docs/kernels.md shows kernels that the tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DOC = (REPOSITORY / "docs" / "kernels.md").read_text()
WHOLE = ["int8_linear.py", "plain_silu.py", "prepared_linear.py"]
BEGUN = ["attention_bshd.py", "two_pass_norm.cu"]


@pytest.mark.parametrize("file", WHOLE)
def test_a_kernel_stands_there_as_it_is(file: str) -> None:
    assert f"```python\n{(REPOSITORY / 'tests' / 'kernels' / file).read_text().strip()}\n```" in DOC


@pytest.mark.parametrize("file", BEGUN)
def test_a_block_stands_there_as_it_is(file: str) -> None:
    text = (REPOSITORY / "tests" / "kernels" / file).read_text()
    block = re.match(r"(?:#|//) /// e2e\n.*?(?:#|//) ///\n", text, re.DOTALL)
    assert block is not None
    assert f"{block[0]}```" in DOC


def test_files_that_it_names_exist() -> None:
    named = set(re.findall(r"`((?:kernels|tests|examples)/[\w/]+\.\w+)", DOC))
    assert len(named) >= 8
    assert [name for name in named if not (REPOSITORY / name).is_file()] == []
