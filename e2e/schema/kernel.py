"""Kernel: the candidate, as its file describes it (DESIGN.md 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator

from e2e.schema.constraint import check_expression
from e2e.schema.precision import Precision, is_lossy
from e2e.schema.record import Record
from e2e.schema.workload import DType

Binding = Literal["tvm-ffi", "raw", "torch", "python", "module", "aten", "patch"]

PATCH = "patch:"
"""Begins the spec of an installed function that changes a model by itself."""
OF_MODELS = ("aten", "module", "patch")
"""Ops that are what some model's modules compute or call: nothing is known of them without one."""
LAYOUTS: Mapping[str, tuple[str, ...]] = {"attention": ("bhsd", "bshd"), "rope": ("half_split", "interleaved")}
"""Layouts by op; the first is the op's own."""
OTHER_OPS = frozenset({"interleaved"})
"""Layouts in which other numbers belong together: no view turns one into the other, so the op is `rope:interleaved`."""
_OTHERS = ("float64", "int8", "int32", "int64", "uint8")
"""Dtypes of scratch memory, saved indices and packed weights, beyond those of a model."""


class Claim(Record):
    """The author's own ratio."""

    speedup: float = Field(gt=0)
    against: str = "eager"
    shapes: str = ""


class Launch(Record):
    """One launch of a bare `__global__` function: geometry over the op's named dimensions."""

    entry: str | dict[DType, str] | None = None
    """The function, or one per dtype; None is the manifest's `entry`."""
    args: list[str] | None = None
    """What the function takes; None is the manifest's `args`."""
    grid: list[int | str] = Field(min_length=1, max_length=3)
    block: list[int | str] = Field(min_length=1, max_length=3)
    shared_bytes: int | str = 0

    @field_validator("grid", "block")
    @classmethod
    def _expressions(cls, value: list[int | str]) -> list[int | str]:
        for item in value:
            check_expression(item)
        return value

    @field_validator("shared_bytes")
    @classmethod
    def _expression(cls, value: int | str) -> int | str:
        check_expression(value)
        return value


class Manifest(Record):
    """The block in a kernel file. Missing fields are filled from the source where it says so."""

    kind: Literal["op", "patch"] = "op"
    """`patch`: the entry changes a model by itself; it is called with the model, or before there is one."""
    op: str
    """Name of the op it replaces; without a block, from `--op` or the file's name. Of a patch, `patch`."""
    entry: str | dict[DType, str]
    """Exported function; one name, or one per dtype."""
    binding: Binding
    backward: str | None = None
    """Exported function of the kernel's own backward, or `reference`, which borrows the op's maths in float32.
    It receives the gradient of each output, the forward's tensors, what the forward saved, and, where outputs are
    preallocated, a tensor for each gradient; one gradient for each of the forward's tensors."""
    saves: list[dict[str, str]] = []
    """Further outputs of the forward, handed to its backward: name, then `dimension, ..., dtype`."""
    workspace: list[dict[str, str]] = []
    """Scratch memory handed to the forward after its outputs, written as `saves` is."""
    prepare: str | None = None
    """Exported function that is called once per site with its parameters, and makes what the entry gets instead."""
    prepared: list[dict[str, str]] = []
    """What it makes, written as `saves` is; empty: one tensor for each parameter, in its place."""
    dtypes: list[DType] = ["float32", "float16", "bfloat16"]
    device: Literal["cpu", "cuda"] | None = None
    """Where it runs; None (Python callables) means wherever the workload runs."""
    args: list[str] | None = None
    """The entry's arguments in its own order, by the op's names, named dimensions and `out`."""
    outputs: Literal["return", "last"] | None = None
    """Whether the entry returns its outputs or takes them last, preallocated; None is the binding's own way."""
    ranks: dict[str, int] = {}
    """Dimensions that the entry takes of a tensor; leading ones are folded into its first, and unfolded in outputs."""
    layout: str | None = None
    """Order of dimensions in which the entry takes tensors and gives outputs; None is the op's own (`LAYOUTS`)."""
    mutates: list[str] = []
    """Tensors of the op that the entry may write to, and whose memory its outputs may share. What a model needs of them
    afterwards is for the model check to say."""
    constraints: list[str] = []
    """Comparisons over named dimensions and `dtype`; excluded calls run the baseline op."""
    launch: list[Launch] = []
    """Of a bare kernel: one launch, or several, one after the other on the same stream."""
    precision: Precision | None = None
    """A lower precision that it computes in: in a model whose dtype holds more, the op rule gives way to the policy's
    budget for the model's outputs."""
    flags: list[str] = []
    """Extra compiler flags."""
    arch: list[Annotated[str, Field(pattern=r"^sm_\d{2,3}[af]?$")]] = []
    """Of CUDA sources: what to build for, such as `sm_90a`; else the device's own architecture."""
    deterministic: bool | None = None
    """Whether the author says that equal inputs give equal bits; None is no statement."""
    claim: Claim | None = None

    @property
    def is_python(self) -> bool:
        """Whether the entry is Python: it may compile at its first call, and autograd sees through it."""
        return self.binding in ("python", "module", "aten", "patch")

    @property
    def borrows_gradients(self) -> bool:
        """Whether the op's own maths is the kernel's backward."""
        return self.backward == "reference"

    @property
    def takes_outputs(self) -> bool:
        """Whether the entry is handed its outputs, preallocated."""
        return self.outputs == "last" or (self.outputs is None and self.binding in ("tvm-ffi", "raw"))

    @property
    def entries(self) -> list[str | dict[DType, str]]:
        """What is called: of a bare kernel the function of every launch."""
        return [launch.entry or self.entry for launch in self.launch] or [self.entry]

    def lossy_in(self, dtype: str) -> Precision | None:
        """The declared precision, where a model of that dtype holds more."""
        return self.precision if is_lossy(self.precision, dtype) else None

    @field_validator("arch", mode="before", json_schema_input_type=list[str] | str)
    @classmethod
    def _architectures(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("launch", mode="before", json_schema_input_type=list[Launch] | Launch | None)
    @classmethod
    def _launches(cls, value: Any) -> Any:
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    @field_validator("saves", "workspace", "prepared")
    @classmethod
    def _shapes(cls, value: list[dict[str, str]]) -> list[dict[str, str]]:
        for item in value:
            if len(item) != 1:
                raise ValueError(f"one name each, as in `- rstd: rows, float32`, not {item!r}")
            for shape in item.values():
                *sizes, dtype = [part.strip() for part in shape.split(",")]
                if not sizes or dtype not in (*get_args(DType), *_OTHERS, "dtype"):
                    known = ", ".join((*get_args(DType), *_OTHERS))
                    raise ValueError(f"{shape!r} must be sizes, then a dtype ({known}, or `dtype` for the call's own)")
                for size in sizes:
                    check_expression(int(size) if size.isdigit() else size)
        return value

    @field_validator("constraints")
    @classmethod
    def _comparisons(cls, value: list[str]) -> list[str]:
        for item in value:
            check_expression(item, comparison=True)
        return value


class Kernel(Record):
    """One candidate: its files and its manifest."""

    spec: str
    """As given on the command line."""
    path: str | None
    """Absolute path of the source; None for `package.module:callable`."""
    others: list[str] = []
    """Absolute paths of further sources, which the first one includes or imports."""
    sha256: str
    """Of the source text, or of all of them: see `sources.digest`."""
    manifest: Manifest
    format: str
    """Name of the reader that understood it."""
    block_line: int | None = None
    """Line on which the manifest block starts."""
    inside: str | None = None
    """Name of the source within what `spec` names, where that holds several."""
    notes: list[str] = []
    """What its reader found that people should know, such as compiler flags that change the maths."""
    op_sha256: str | None = None
    """Of the file that the op comes from; None for an op of e2e's own."""

    @property
    def shown(self) -> str:
        """How messages name the source that their line numbers count in."""
        return self.spec if self.inside is None else f"{self.spec} ({self.inside})"
