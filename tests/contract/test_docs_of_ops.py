"""docs/ops.md shows the files that the tests run, and names every member of an op."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e import outside
from e2e.kernel_template import SHARED, TEMPLATES
from tests.contract.test_every_template import EVERY

REPOSITORY = Path(__file__).parents[2]
DOC = (REPOSITORY / "docs" / "ops.md").read_text()


@pytest.mark.parametrize("file", ["examples/swiglu_mlp.py", "examples/swiglu_mlp_kernel.py"])
def test_an_example_stands_there_as_it_is(file: str) -> None:
    assert f"```python\n{(REPOSITORY / file).read_text().strip()}\n```" in DOC


def test_every_member_of_an_op_has_its_line() -> None:
    table = DOC.partition("| member | is |")[2]
    named = re.findall(
        r"`(\w+)", "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    )
    assert sorted(outside.OP.members) == sorted(named)


def test_paths_that_it_names_exist() -> None:
    named = set(re.findall(r"`((?:e2e|docs|examples|tests)/[\w/]+\.\w+)", DOC)) - {
        "e2e/templates/NAME.h",
        "e2e/ops/NAME.py",
    }
    assert len(named) >= 4
    assert [path for path in named if not (REPOSITORY / path).is_file()] == []


def test_every_template_belongs_to_an_op() -> None:
    stems = {path.stem for path in TEMPLATES.iterdir()} - {*SHARED}
    assert {op for op, _ in EVERY} == stems
