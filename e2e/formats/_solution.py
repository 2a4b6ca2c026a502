"""Records of FlashInfer-Bench and SOL-ExecBench, as far as they are read. Both dialects; unknown keys are theirs.

Source:
    flashinfer-ai/flashinfer-bench `data/solution.py`, `data/definition.py`; NVIDIA/SOL-ExecBench `core/data/`.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from e2e.errors import UsageError
from e2e.yaml_lines import printable


class _Theirs(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


_Kind = TypeVar("_Kind", bound=_Theirs)


class SourceFile(_Theirs):
    """One file within a solution."""

    path: str
    content: str

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, value: str) -> str:
        path = PurePosixPath(value)
        if not value.strip() or path.is_absolute() or ".." in path.parts or not value.isprintable() or "\\" in value:
            raise ValueError("must be a relative path within the solution, without `..`")
        return path.as_posix()


class CompileOptions(_Theirs):
    """Flags of SOL-ExecBench."""

    cflags: list[str] = []
    cuda_cflags: list[str] = []
    ld_flags: list[str] = []


class BuildSpec(_Theirs):
    """How a solution is built and called."""

    languages: list[str] = Field(min_length=1, validation_alias=AliasChoices("languages", "language"))
    """One, as `language`, in FlashInfer-Bench."""
    entry_point: str
    destination_passing_style: bool | None = None
    """None is not stated; both harnesses then pass outputs last."""
    binding: str | None = None
    compile_options: CompileOptions | None = None

    @field_validator("languages", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("entry_point")
    @classmethod
    def _has_two_parts(cls, value: str) -> str:
        file, _, function = value.partition("::")
        if not file or not function.isidentifier():
            raise ValueError("must be 'file.py::function'")
        return value


class Solution(_Theirs):
    """An implementation of one definition."""

    name: str
    definition: str = Field(pattern=r"^[\w.+-]+$")
    spec: BuildSpec
    sources: list[SourceFile] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_its_entry(self) -> Solution:
        paths = [source.path for source in self.sources]
        if twice := {path for path in paths if paths.count(path) > 1}:
            raise ValueError(f"sources: {min(twice)!r} is there twice")
        if self.entry[0] not in paths:
            raise ValueError(f"spec.entry_point: {self.entry[0]!r} is not among the sources: {', '.join(paths)}")
        return self

    @property
    def entry(self) -> tuple[str, str]:
        """File and function."""
        file, _, function = self.spec.entry_point.partition("::")
        return PurePosixPath(file).as_posix(), function


class Axis(_Theirs):
    """One named dimension; only constant ones hold a number."""

    type: Literal["const", "var", "expr"]
    value: int | None = Field(default=None, ge=0)


class TensorSpec(_Theirs):
    """An input or output; a scalar has no shape."""

    shape: list[str | Annotated[int, Field(ge=0)]] | None = None
    dtype: str


class Definition(_Theirs):
    """What a solution computes."""

    name: str
    op_type: str = ""
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec] = Field(min_length=1)
    outputs: dict[str, TensorSpec] = Field(min_length=1)
    reference: str = ""

    def size_of(self, axis: str | int) -> int | None:
        """A constant axis's size."""
        if isinstance(axis, int):
            return axis
        return self.axes[axis].value if axis in self.axes else None


def parsed_json(text: str, shown: str) -> Any:
    """The document.

    Raises:
        UsageError: not JSON; with its line.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{shown}:{error.lineno}: not JSON: {error.msg[0].lower()}{error.msg[1:]}") from error
    except RecursionError as error:
        raise UsageError(f"{shown}:1: not JSON: nested too deeply") from error


def checked(kind: type[_Kind], data: Any, shown: str) -> _Kind:
    """The record.

    Raises:
        UsageError: every mistake, as `file: field: message`.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UsageError("\n".join(f"{shown}: {_said(item)}" for item in error.errors(include_url=False))) from error


def _said(item: Any) -> str:
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{printable(str(part))}" for part in item["loc"])
    message = "missing; it is required" if item["type"] == "missing" else str(item["msg"])
    message = message.removeprefix("Value error, ").replace("Input should be", "must be", 1)
    return ": ".join(part for part in (field.removeprefix("."), message) if part)
