"""docs/workloads.md lists every task and every shipped workload, shows the example that tests run, and its members."""

from __future__ import annotations

import re
import typing
from pathlib import Path

from e2e import registry
from e2e.protocols import Session
from e2e.schema.workload import Cells, CommandSpec, DataSpec, ModelSpec, TrainSpec, Workload

REPOSITORY = Path(__file__).parents[2]
DOC = (REPOSITORY / "docs" / "workloads.md").read_text()


def rows_after(heading: str) -> str:
    """First columns of the table that begins with that line."""
    table = DOC.partition(heading)[2].partition("\n\n")[0]
    return "\n".join(line.split("|")[1] for line in table.splitlines()[2:])


def test_the_example_stands_there_as_it_is() -> None:
    assert f"```python\n{(REPOSITORY / 'examples' / 'forecaster.py').read_text().strip()}\n```" in DOC


def test_every_member_of_a_session_has_its_place() -> None:
    members = {name for name in vars(Session) if not name.startswith("_")} | set(typing.get_type_hints(Session))
    assert set(re.findall(r"`(\w+)", rows_after("| member of a session | is |"))) == members


def test_every_task_has_its_rows() -> None:
    assert re.findall(r"`([\w-]+)`", rows_after("| task | model |")) == registry.names("tasks")


def test_every_shipped_workload_is_listed() -> None:
    files = {file.stem for file in (REPOSITORY / "workloads").glob("*.yaml")}
    assert set(re.findall(r"`(\w+)`", rows_after("| shipped | what |"))) == files


def test_every_field_is_listed() -> None:
    listed = set(re.findall(r"`([\w.]+)`", rows_after("| field | value | default |")))
    inner = {"model": ModelSpec, "data": DataSpec, "train": TrainSpec, "command": CommandSpec}
    fields = {name for name in Workload.model_fields if name not in {*inner, "cells"}}
    fields |= {f"{name}.{field}" for name, record in inner.items() for field in record.model_fields}
    assert listed == fields | {f"cells.{field}" for field in Cells.model_fields}
