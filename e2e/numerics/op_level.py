"""The op by itself: inputs, what is right on them, and what a kernel's outputs are worth. Needs no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch import library as lib

from e2e import wording
from e2e.binding import registered
from e2e.errors import UsageError
from e2e.numerics.captures import (
    Captured,
    altered,
    clone_call,
    load_calls,
    output_names,
    read_outputs,
    save_calls,
    twins,
    unusual,
)
from e2e.numerics.compare import exactly, judge_outputs, wider
from e2e.numerics.places import first_wrong
from e2e.numerics.precisions import Lowering, lowered, ways_below
from e2e.numerics.training import worst_gradient
from e2e.protocols import Op, OpCall, outputs_of, written_by
from e2e.schema.evidence import EXAMPLE
from e2e.schema.words import ReasonCode
from e2e.wording import clean


def spared(op: Op, call: OpCall) -> OpCall:
    """The call, or for an op that works in place the same values elsewhere: they are asked again."""
    return clone_call(call) if written_by(op) else call


class OpExaminer:
    """Clean side. Knows what is right: the reference, and how far plain maths in the kernel's own dtype is from it."""

    def __init__(self, op: Op, device: str) -> None:
        self._op = op
        self._device = device
        self._calls: list[Captured] = []

    def draw(self, *, dtype: str, seed: int, path: Path) -> dict[str, Any]:
        """The op's example and its edge inputs, saved for the kernel's process.

        Raises:
            UsageError: the op has no calls apart from a model's.
        """
        call = self._op.example(dtype, self._device, seed)
        # other values of everything, weights too, in the same shapes: nothing remembered by shape may pass
        again = self._op.example(dtype, self._device, seed + 1)
        self._calls = [Captured(self._op.name, EXAMPLE, call), Captured(self._op.name, "another example", again)]
        self._calls += altered(self._calls[0], seed)
        more = getattr(self._op, "variants", None)
        for label, variant in more(dtype, self._device, seed) if more is not None else ():
            self._calls.append(Captured(self._op.name, label, variant))
        self._calls += self._edges(self._calls[0], seed)
        save_calls(path, self._calls)
        return {"calls": len(self._calls)}

    def take(self, captured: Path, *, seed: int, path: Path) -> dict[str, Any]:
        """A model's own inputs of the op, and edge inputs made of the first, saved for the kernel's process.

        Raises:
            UsageError: the file does not hold calls of this op.
        """
        try:
            calls = load_calls(captured, self._device)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise UsageError(f"{captured}: its calls cannot be read: {clean(str(error))}") from error
        counts = (len(self._op.tensor_names), len(self._op.scalar_names))
        if not calls or any((len(item.call.tensors), len(item.call.scalars)) != counts for item in calls):
            raise UsageError(f"{captured} holds no calls of {self._op.name}")
        first = calls[0]
        self._calls = [*calls, *twins(first, seed), *self._edges(first, seed)]
        save_calls(path, self._calls)
        return {"calls": len(self._calls)}

    def _edges(self, first: Captured, seed: int) -> list[Captured]:
        """The op's hard inputs of the kind of a call, and what is hardly a number in one of them."""
        edges = [Captured(first.site, label, edge) for label, edge in self._op.edge_calls(first.call, seed)]
        return [*edges, *unusual(edges, seed)]

    def _baseline(self, item: Captured) -> Any:
        """What a user of PyTorch gets without the kernel."""
        with torch.no_grad():
            call = spared(self._op, item.call)
            return self._plain(*call.tensors, *call.scalars)

    @property
    def _plain(self) -> Callable[..., Any]:
        """The first alternative, which sums as carefully as people expect; where there is none, the reference."""
        return next(iter(self._op.alternatives.values()), self._op.reference)

    def compare_ops(self, *, outputs: Path, ratio: float) -> list[dict[str, Any]]:
        """The candidate's outputs, read from a file it wrote, against reference and baseline."""
        results = read_outputs(outputs, self._device)
        rows: list[dict[str, Any]] = []
        suspected: list[Lowering] | None = None
        kept: list[list[Tensor]] = []
        for place, item in enumerate(self._calls):
            row = self._row(item)
            values = [results[name] for name in output_names(results, place)]
            if values:
                row |= self._verdict(item, values, ratio)
                row |= _replay(row, values, kept)
                if row["status"] == "passed" and not all(_is_uniform(value) for value in values):
                    kept.append(values)
            if row.get("code") is ReasonCode.OP_ERROR_EXCEEDED and suspected != []:
                # the first wrong input says which precision, if any: to try all of them on every input takes minutes
                way = self._lowered(item, values, suspected)
                suspected = suspected or ([way] if way else [])
                row |= _as_lowered(way) if way else {}
            rows.append(row)
        return rows

    def _verdict(self, item: Captured, values: list[Tensor], ratio: float) -> dict[str, Any]:
        base, exact = self._baseline(item), exactly(self._op, item.call)
        judged = judge_outputs(values, base, exact, ratio=ratio)
        found, own = judged.found, judged.own
        return {
            "status": "wrong" if judged.code else "passed",
            "code": judged.code,
            "message": judged.excess,
            "position": first_wrong(values, base, exact, ratio=ratio) if judged.code else None,
            "error_candidate": found.total if found else None,
            "error_baseline": own.total,
            "worst_row_candidate": found.worst_row if found else None,
            "worst_row_baseline": own.worst_row,
            "worst_tile_candidate": found.worst_tile if found else None,
            "worst_tile_baseline": own.worst_tile,
            "allowed": judged.allowed,
        }

    def _lowered(self, item: Captured, values: list[Tensor], suspected: list[Lowering] | None) -> Lowering | None:
        ways = suspected or ways_below(values[0].dtype)
        return lowered(self._op, item.call, values, exactly(self._op, item.call), ways=ways)

    def _row(self, item: Captured) -> dict[str, Any]:
        x = item.call.tensors[0]
        is_list = not isinstance(x, Tensor)
        return {
            "site": item.site,
            "label": item.label,
            "shape": wording.count(len(x), "tensor") if is_list else " x ".join(map(str, x.shape)),
            "stride": "" if is_list else str(tuple(x.stride())),
            "dtype": str(self._op.dims(item.call)["dtype"]),  # x may be whole numbers
        }

    def mutants(self, *, ratio: float) -> list[dict[str, Any]]:
        """Whether the very same comparison, on the very same inputs, rejects each wrong kernel."""
        exact = [(item, self._baseline(item), exactly(self._op, item.call)) for item in self._calls]
        rows: list[dict[str, Any]] = []
        if not self._calls:  # nothing that any check could have noticed
            return rows
        for name, mutant in self._op.mutants().items():
            caught = any(
                judge_outputs(mutant(*item.call.tensors, *item.call.scalars), base, reference, ratio=ratio)[0]
                is not None
                for item, base, reference in exact
            )
            rows.append({"name": name, "caught": caught})
        return rows

    def compare_gradients(self, *, path: Path, seed: int, ratio: float) -> dict[str, Any]:
        """The kernel's gradients of the first call, read from a file its process wrote, against float64."""
        call, names = self._calls[0].call, self._op.tensor_names
        wide = OpCall(tuple(wider(tensor) for tensor in call.tensors), call.scalars)
        own = gradients(self._plain, names, call, seed=seed)
        theirs = read_outputs(path, self._device)
        exact = gradients(self._op.reference, names, wide, seed=seed)
        return {
            **worst_gradient(own, theirs, exact, ratio=ratio),
            "parameters": len(exact),
            "with_gradient_baseline": len(own),
            "with_gradient_candidate": len(set(theirs) & set(own)),
        }


def _as_lowered(way: Lowering) -> dict[str, Any]:
    message = f"its error is that of the op's exact maths in {way.precision}"
    return {"code": ReasonCode.PRECISION_DOWNGRADED, "message": message}


def _replay(row: dict[str, Any], values: list[Tensor], kept: list[list[Tensor]]) -> dict[str, Any]:
    """The code of wrong outputs that are, bit for bit, what was right for inputs before: no maths errs like that."""
    if row["status"] == "wrong" and any(_are_equal(values, other) for other in kept):
        return {"code": ReasonCode.REPLAYED_OUTPUT, "message": "these are, bit for bit, its outputs for earlier inputs"}
    return {}


def _are_equal(values: list[Tensor], others: list[Tensor]) -> bool:
    pairs = zip(values, others, strict=False)
    return len(values) == len(others) and all(
        mine.dtype == theirs.dtype and torch.equal(mine, theirs) for mine, theirs in pairs
    )


def _is_uniform(value: Tensor) -> bool:
    """Whether it holds one value only, which many inputs may have for an answer."""
    return value.numel() == 0 or bool((value == value.reshape(-1)[0]).all())


def gradients(function: Callable[..., Any], names: Sequence[str], call: OpCall, *, seed: int) -> dict[str, Tensor]:
    """Gradients of every tensor of real numbers in the call that has one, by name, for drawn gradients of the outputs.

    The drawn ones are exact in bfloat16, so that a call in float64 gets the very same.
    """
    tensors = [_leaf(tensor) for tensor in call.tensors]
    outputs = outputs_of(function(*tensors, *call.scalars))
    draw = torch.Generator().manual_seed(seed)
    upstream = [torch.randn(output.shape, generator=draw).bfloat16().to(output) for output in outputs]
    wanted = {name: tensor for name, tensor in zip(names, tensors, strict=True) if _is_real(tensor)}
    found = torch.autograd.grad(outputs, list(wanted.values()), upstream, allow_unused=True)
    return {name: gradient for name, gradient in zip(wanted, found, strict=True) if gradient is not None}


def save_gradients(op: Op, function: Callable[..., Any], *, inputs: Path, path: Path, seed: int, device: str) -> None:
    """Candidate side: the gradients of the first saved call, by the op's names."""
    found = gradients(function, op.tensor_names, load_calls(inputs, device)[0].call, seed=seed)
    save_file({name: gradient.contiguous() for name, gradient in found.items()}, path)


def torch_problems(
    op: Op, kernel: Callable[..., Any], *, inputs: Path, sha256: str, device: str
) -> dict[str, str | None]:
    """Candidate side: what torch's own check of a registered op says of the kernel on the first saved call."""
    call = load_calls(inputs, device)[0].call
    function = registered(op, kernel, sha256=sha256, device=device)
    tests = {"called": "test_schema", "faked": "test_faketensor"}
    found = lib.opcheck(
        function, (*call.tensors, *call.scalars), test_utils=tuple(tests.values()), raise_exception=False
    )
    said = {name: found[test] for name, test in tests.items()}
    return {name: None if text == "SUCCESS" else clean(str(text)) for name, text in said.items()}


def _leaf(tensor: Any) -> Any:
    return tensor.detach().clone().requires_grad_() if _is_real(tensor) else tensor


def _is_real(tensor: Any) -> bool:
    return tensor is not None and bool(tensor.is_floating_point())
