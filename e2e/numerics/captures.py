"""Op inputs on disk, with their real strides and offsets: what one process saw, another can replay exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from e2e.errors import CandidateError
from e2e.handed import need_plain
from e2e.protocols import OpCall, mapped, tensors_of
from e2e.schema.evidence import UNUSUAL

ALIGNMENT = 64
"""Elements; a clone starts as far from a multiple of it as its original, so that vector loads see the same."""
ALTERED = 8
"""Elements: so few that a sample of every hundredth would seldom show one of them."""
ALTERED_CALLS = 3
"""Drawn apart, so that a kernel's sample of its input has to meet every one of them."""
MAX_GAPS_BYTES = 16 * 2**20
"""A larger clone must not consist of gaps."""


@dataclass(frozen=True)
class Captured:
    """One op call and where it came from."""

    site: str
    label: str
    """`captured` or `example`, else the name of an edge input."""
    call: OpCall


def save_calls(path: Path, calls: Sequence[Captured], *, about: Mapping[str, str] | None = None) -> None:
    """Write calls as safetensors: each tensor's storage once, its geometry beside it; `about` is more to know."""
    tensors: dict[str, Tensor] = {}
    storages: dict[int, str] = {}
    rows = []

    def saved(tensor: Tensor) -> list[Any]:
        key = storages.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
        if key is None or tensors[key].dtype != tensor.dtype:
            key = f"s{len(tensors)}"
            tensors[key] = _whole_storage(tensor).cpu().clone()
            storages[tensor.untyped_storage().data_ptr()] = key
        return [key, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]

    for item in calls:
        geometry = [mapped(saved, argument) for argument in item.call.tensors]
        rows.append({"site": item.site, "label": item.label, "tensors": geometry, "scalars": list(item.call.scalars)})
    save_file(tensors, path, metadata={**(about or {}), "calls": json.dumps(rows)})


def load_calls(path: Path, device: str) -> list[Captured]:
    """Read calls back; every call gets storages of its own, so that one call cannot spoil another's inputs."""
    with safe_open(path, framework="pt") as file:
        rows: list[dict[str, Any]] = json.loads(file.metadata()["calls"])
        calls = []

        def loaded(place: Any) -> Any:
            if place is None or not (place and isinstance(place[0], str)):
                return place and tuple(map(loaded, place))
            key, shape, stride, offset = place
            storage = file.get_tensor(key).to(device)
            storage = storage.clone() if device == "cpu" else storage
            return storage.as_strided(shape, stride, offset)

        for row in rows:
            call = OpCall(tuple(map(loaded, row["tensors"])), tuple(row["scalars"]))
            calls.append(Captured(row["site"], row["label"], call))
    return calls


def storages_of(calls: Iterable[Captured]) -> list[Tensor]:
    """What `save_calls` writes of them: every storage once, as one row."""
    found: dict[int, Tensor] = {}
    for item in calls:
        for tensor in tensors_of(item.call):
            found.setdefault(tensor.untyped_storage().data_ptr(), _whole_storage(tensor))
    return list(found.values())


def _whole_storage(tensor: Tensor) -> Tensor:
    """All elements of the tensor's storage as one row, so that strides and offset still mean the same."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def select(calls: Sequence[Captured], budget_bytes: int) -> list[Captured]:
    """Calls whose storages fit the budget: first, last, then the middle outwards, every distinct form first."""
    order = sorted(range(len(calls)), key=lambda place: (_rank(place, len(calls)), place))
    seen: set[tuple[Any, ...]] = set()
    first: list[Captured] = []
    rest: list[Captured] = []
    for place in order:
        form = form_of(calls[place].call)
        (rest if form in seen else first).append(calls[place])
        seen.add(form)
    kept: list[Captured] = []
    used = 0
    for item in [*first, *rest]:
        size = sum(t.untyped_storage().nbytes() for t in tensors_of(item.call))
        if not kept or used + size <= budget_bytes:
            kept.append(item)
            used += size
    return kept


def read_outputs(path: Path, device: str, *names: str) -> dict[str, Tensor]:
    """What the candidate's process says its outputs are.

    Raises:
        CandidateError: `tampered`: it is not what that process was asked to write.
    """
    try:
        need_plain(path)
        found: dict[str, Any] = load_file(path, device=device)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CandidateError(f"the candidate's outputs cannot be read: {error}", code="tampered") from error
    for name in names:
        if name not in found:
            raise CandidateError(f"the candidate's outputs have no {name!r}", code="tampered")
    return found


def output_name(place: int, number: int) -> str:
    """Name of one output of one call in the file of outputs."""
    return f"o{place}.{number}"


def output_names(names: Iterable[str], place: int) -> list[str]:
    """Those of one call, in their order."""
    return sorted((name for name in names if name.startswith(f"o{place}.")), key=lambda name: int(name.split(".")[1]))


def form_of(call: OpCall) -> tuple[Any, ...]:
    """Shapes, strides and dtypes of a call, and its scalars: calls of one form take the same way through a kernel."""

    def form(tensor: Tensor) -> tuple[Any, ...]:
        return (tuple(tensor.shape), tensor.stride(), tensor.dtype)

    return (*(mapped(form, argument) for argument in call.tensors), call.scalars)


def described(form: tuple[Any, ...]) -> dict[str, Any]:
    """A form in words and numbers that JSON knows."""
    *tensors, scalars = form
    return {"tensors": list(map(_shown, tensors)), "scalars": list(scalars)}


def _shown(form: Any) -> Any:
    if form is None or not form or isinstance(form[-1], tuple):  # of a list, the forms of its tensors
        return form and list(map(_shown, form))
    shape, stride, dtype = form
    return {"shape": list(shape), "stride": list(stride), "dtype": str(dtype).removeprefix("torch.")}


def _rank(place: int, count: int) -> int:
    return 0 if place in (0, count - 1, count // 2) else 1


def clone_call(call: OpCall) -> OpCall:
    """The same values, strides and offsets in new storages."""
    return OpCall(tuple(mapped(_clone, argument) for argument in call.tensors), call.scalars)


def _clone(tensor: Tensor) -> Tensor:
    """Memory of its own, as far as the view reaches, with the same strides and the same alignment."""
    if tensor.numel() == 0:
        return tensor.clone()
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if reach > 4 * tensor.numel() and reach * tensor.element_size() > MAX_GAPS_BYTES:
        return tensor.clone()  # a few values of something huge: without the strides, and without the gaps
    lead = tensor.storage_offset() % ALIGNMENT
    window = tensor.detach().as_strided((lead + reach,), (1,), tensor.storage_offset() - lead)
    return window.clone().as_strided(tensor.shape, tensor.stride(), lead)


def turned(item: Captured) -> list[Captured]:
    """A call of the same shapes with other values: an op that a step calls once would let a kernel answer by shape.

    None where the first tensor is one value, or one in many places; a list has none.
    """
    if not isinstance(item.call.tensors[0], Tensor):
        return []
    moved = clone_call(item.call)  # its strides too
    first = moved.tensors[0]
    steps = [stride for size, stride in zip(first.shape, first.stride(), strict=True) if size > 1]
    if not steps or 0 in steps:
        return []
    first.copy_(item.call.tensors[0].roll(1, 0).roll(1, -1))
    return [Captured(item.site, "the same shape, values moved", moved)]


def altered(item: Captured, seed: int) -> list[Captured]:
    """The same call with a few elements changed: what knows its inputs by a sample of them takes it for the first.

    None where the first tensor holds no real numbers, or one in many places; a list has none.
    """
    first = item.call.tensors[0]
    if (
        not isinstance(first, Tensor)
        or not first.is_floating_point()
        or first.numel() < 2 * ALTERED
        or torch._debug_has_internal_overlap(first) == 1
    ):
        return []
    draw = torch.Generator().manual_seed(seed)
    return [
        Captured(item.site, f"{ALTERED} elements changed", _with_some_changed(item.call, draw))
        for _ in range(ALTERED_CALLS)
    ]


def _with_some_changed(call: OpCall, draw: torch.Generator) -> OpCall:
    changed = clone_call(call)
    first = changed.tensors[0]
    places = torch.randint(first.numel(), (ALTERED,), generator=draw).to(first.device)
    flat = first.flatten()  # a copy where its elements do not lie in order
    flat[places] = -2 * flat[places]
    first.copy_(flat.reshape(first.shape))
    return changed


def unusual(calls: Sequence[Captured], seed: int) -> list[Captured]:
    """The smallest of some calls with one number that is none, with one infinite one, and with all of them tiny.

    None where no first tensor holds real numbers in rows of their own.
    """
    fit = [item for item in calls if _has_rows(item.call.tensors[0])]
    if not fit:
        return []
    least = min(fit, key=lambda item: item.call.tensors[0].numel())
    first = least.call.tensors[0]
    place = int(torch.randint(first.numel(), (), generator=torch.Generator().manual_seed(seed)))
    alone = torch.arange(first.numel(), device=first.device).reshape(first.shape) == place
    scale = torch.finfo(first.dtype).smallest_normal / first.abs().amax().clamp_min(1e-3).double()
    changed = (first.masked_fill(alone, torch.nan), first.masked_fill(alone, torch.inf), (first * scale).to(first))
    found = [Captured(least.site, label, clone_call(least.call)) for label in UNUSUAL]
    for item, values in zip(found, changed, strict=True):
        item.call.tensors[0].copy_(values)
    return found


def _has_rows(first: Any) -> bool:
    return (
        isinstance(first, Tensor)
        and first.is_floating_point()
        and first.dim() > 1
        and first.numel() > first.shape[-1]
        and torch._debug_has_internal_overlap(first) != 1
    )


def twins(item: Captured, seed: int) -> list[Captured]:
    """Calls that differ from one in their values only, by all of them and by few."""
    return [*turned(item), *altered(item, seed)]
