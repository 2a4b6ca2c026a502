"""Whether a block's fields fit one another and the binding: what no single field shows."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from e2e.schema.kernel import LAYOUTS, Launch, Manifest
from e2e.schema.workload import DType
from e2e.yaml_lines import printable

Path = tuple[str | int, ...]
"""Where in the block, as `yaml_lines` has it."""
Mistakes = Iterator[tuple[Path, str]]

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_FORWARD_ONLY = ("raw", "module", "aten", "patch")
"""Bindings that know one entry; modules and ATen's operators bring their gradients by themselves."""
_PREPARING = ("tvm-ffi", "torch", "python")
"""Bindings with functions beside the entry that run once."""
_HANDED_MEMORY = ("tvm-ffi", "raw")
"""Bindings whose entries allocate nothing."""
_OWN_CALL = ("module", "aten", "patch")
"""Bindings that say by themselves what an entry is called with."""
_BORROWED = (None, "reference")
"""Backwards that need no function in the source."""
_MOST_DIMENSIONS = 8
"""More than tensors of models have."""
_MOST_THREADS, _MOST_SHARED_BYTES = 1024, 232_448
_MOST_BLOCKS, _MOST_THREADS_OF = (2**31 - 1, 65_535, 65_535), (1024, 1024, 64)
"""Limits of a launch that hold on every device.

Source:
    CUDA programming guide, technical specifications per compute capability; 227 KiB of shared memory are the most.
"""


def mistakes_of(manifest: Manifest, suffix: str) -> Mistakes:
    """Every mistake that shows without the op and without the source."""
    yield from _of_binding(manifest, suffix)
    yield from _of_unused(manifest, native=suffix != ".py")
    yield from _of_memory(manifest)
    yield from _of_names(manifest)
    yield from _of_launches(manifest)


def _of_binding(manifest: Manifest, suffix: str) -> Mistakes:
    native = suffix != ".py"
    if manifest.is_python == native:
        known = "tvm-ffi, raw or torch" if native else "python or module"
        yield ("binding",), f"a {suffix} file is bound by {known}, not {manifest.binding}"
    elif manifest.binding == "raw" and suffix != ".cu":
        yield ("binding",), f"raw needs a .cu file, not {suffix}"
    elif manifest.binding == "raw" and not manifest.launch:
        yield ("launch",), "missing; raw needs one, such as `launch: {grid: [rows], block: [256]}`"
    patches = [manifest.kind == "patch", manifest.op == "patch", manifest.binding == "patch"]
    if any(patches) and not all(patches):
        yield ("kind",), "a patch is `kind: patch` alone: leave `op` and `binding` out"
    if manifest.launch and manifest.binding != "raw":
        yield ("launch",), f"only for `binding: raw`; {manifest.binding} launches by itself"
    if suffix == ".cu" and manifest.device == "cpu":
        yield ("device",), "a .cu file runs on cuda; name a C++ source .cpp"
    layouts = LAYOUTS.get(manifest.op.partition(":")[0], ())
    if manifest.layout is not None and manifest.layout not in layouts:
        known = f"{manifest.op} has {' and '.join(layouts)}" if layouts else f"{manifest.op} has one only"
        yield ("layout",), f"no {printable(manifest.layout)!r}: {known}"


def _of_unused(manifest: Manifest, *, native: bool) -> Mistakes:
    """Fields that this binding would pass over in silence."""
    binding = manifest.binding
    stated = {
        "args": manifest.args is not None and binding in _OWN_CALL,
        "outputs": manifest.outputs is not None and binding in (*_OWN_CALL, "raw"),
        "ranks": bool(manifest.ranks) and binding in (*_OWN_CALL, "raw"),
        "backward": manifest.backward not in _BORROWED and binding in _FORWARD_ONLY,
        "saves": bool(manifest.saves) and binding in _FORWARD_ONLY,
    }
    for field in (field for field, is_stated in stated.items() if is_stated):
        yield (field,), f"not for `binding: {binding}`, {_why(binding, field)}"
    if manifest.kind == "patch" and manifest.backward == "reference":
        yield ("backward",), "not for `kind: patch`, which brings its own gradients"
    if manifest.flags and not native:
        yield ("flags",), "only for C++ and CUDA sources; nothing compiles a .py file"
    if manifest.arch and not (native and manifest.device == "cuda"):
        yield ("arch",), "only for CUDA sources"
    if manifest.backward is not None and manifest.op.startswith("aten:"):
        yield ("backward",), "not for an operator of ATen: in training the operator's own stays in its place"


def _why(binding: str, field: str) -> str:
    if field in ("backward", "saves"):
        return "which hands over one entry's arguments only"
    return "whose outputs are preallocated" if binding == "raw" else "which says by itself what its entry gets"


def _of_memory(manifest: Manifest) -> Mistakes:
    """Tensors beside the op's own, and who fills them."""
    if manifest.workspace and manifest.binding not in _HANDED_MEMORY:
        yield ("workspace",), f"not for `binding: {manifest.binding}`, which allocates by itself"
    if manifest.prepare is not None and manifest.binding not in _PREPARING:
        yield ("prepare",), f"not for `binding: {manifest.binding}`; for {', '.join(_PREPARING)}"
    elif manifest.prepare is not None and not manifest.prepared and manifest.takes_outputs:
        yield ("prepared",), 'missing: what `prepare` fills, such as `[{packed: "outputs, inputs, dtype"}]`'
    if manifest.prepared and manifest.prepare is None:
        yield ("prepared",), "only beside `prepare`"
    if manifest.saves and manifest.backward in _BORROWED:
        whose = "the op's own takes nothing of it" if manifest.backward else "there is none"
        yield ("saves",), f"only beside a `backward` of the kernel's own, and {whose}; scratch memory is `workspace`"
    own_way = manifest.outputs == "return" or bool(manifest.ranks)
    if manifest.binding == "tvm-ffi" and own_way:
        field = "outputs" if manifest.outputs == "return" else "ranks"
        has = {
            "backward": manifest.backward not in _BORROWED,
            "saves": bool(manifest.saves),
            "workspace": bool(manifest.workspace),
        }
        if others := [name for name, stated in has.items() if stated]:
            yield (field,), f"not together with {', '.join(f'`{name}`' for name in others)} in a tvm-ffi kernel"


def _of_names(manifest: Manifest) -> Mistakes:
    if not manifest.dtypes:
        yield ("dtypes",), "must name at least one"
    for dtype in _repeated(manifest.dtypes):
        yield ("dtypes",), f"{dtype} twice; keep one"
    yield from _of_entries(manifest)
    for field, function in (("backward", manifest.backward), ("prepare", manifest.prepare)):
        if function is not None and not _IDENTIFIER.fullmatch(function):
            yield (field,), f"{printable(function)!r} is not a function's name"
    for name, rank in manifest.ranks.items():
        if not 1 <= rank <= _MOST_DIMENSIONS:
            yield ("ranks", name), f"must be from 1 to {_MOST_DIMENSIONS}, not {rank}"
    for field, items in extras_of(manifest):
        for place, name in enumerate(items):
            if not _IDENTIFIER.fullmatch(name):
                yield (field, place), f"{printable(name)!r} is not a name"
    for name in _repeated([name for _, items in extras_of(manifest) for name in items]):
        field = [field for field, items in extras_of(manifest) if name in items][-1]
        yield (field,), f"{printable(name)!r} twice; every tensor has a name of its own"


def _of_entries(manifest: Manifest) -> Mistakes:
    for path, entry in _entries(manifest):
        for name in [entry] if isinstance(entry, str) else entry.values():
            if not _IDENTIFIER.fullmatch(name):
                yield path, f"{printable(name)!r} is not a function's name"
        if not isinstance(entry, str) and (silent := set(manifest.dtypes) - set(entry)):
            yield path, f"no function for {', '.join(sorted(silent))}, which `dtypes` lists"


def extras_of(manifest: Manifest) -> list[tuple[str, list[str]]]:
    """Fields that name tensors of the kernel's own, and those names."""
    listed = {"saves": manifest.saves, "workspace": manifest.workspace, "prepared": manifest.prepared}
    return [(field, [name for item in items for name in item]) for field, items in listed.items()]


def _entries(manifest: Manifest) -> Iterator[tuple[Path, str | dict[DType, str]]]:
    """Every function that is called, and where the block names it."""
    if not manifest.launch:
        yield ("entry",), manifest.entry
    for place, launch in enumerate(manifest.launch):
        yield (("launch", place, "entry"), launch.entry) if launch.entry else (("entry",), manifest.entry)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _of_launches(manifest: Manifest) -> Mistakes:
    """Sizes that no device takes, as far as they are numbers."""
    for place, launch in enumerate(manifest.launch):
        for message in _impossible(launch):
            yield ("launch", place), message


def _impossible(launch: Launch) -> Iterator[str]:
    for field, sizes, most in (("grid", launch.grid, _MOST_BLOCKS), ("block", launch.block, _MOST_THREADS_OF)):
        for axis, size, limit in zip("xyz", sizes, most, strict=False):
            if isinstance(size, int) and not 1 <= size <= limit:
                yield f"{field}: {axis} must be from 1 to {limit}, not {size}"
    threads = math.prod(size for size in launch.block if isinstance(size, int))
    if threads > _MOST_THREADS and all(not isinstance(size, int) or size <= _MOST_THREADS for size in launch.block):
        yield f"block: {threads} threads, where a block has at most {_MOST_THREADS}"
    if isinstance(launch.shared_bytes, int) and not 0 <= launch.shared_bytes <= _MOST_SHARED_BYTES:
        yield f"shared_bytes: must be from 0 to {_MOST_SHARED_BYTES}, not {launch.shared_bytes}"
