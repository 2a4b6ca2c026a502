"""The user's side of `task: command`: what to run, the kernel to run it with, and what to hand back.

Imports nothing but Python at first, and may be copied beside a program whose environment has no e2e. By hand the same
program runs as `E2E_ARM=baseline` would, and prints its report.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Plan", "kernel", "plan", "report"]

_WITH_KERNEL = ("candidate", "mutant")
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
"""Names as NumPy and torch print them, and as safetensors has them."""
_loaded: list[_Counted] = []


@dataclass(frozen=True)
class Plan:
    """What this process is asked to run."""

    arm: str
    """`baseline`: without the kernel. `candidate`: with it. `sham`: the swap, with the original maths. `mutant`: with
    the kernel, whose outputs `kernel` replaces by zeros."""
    seed: int
    """Everything that is drawn follows from it."""
    batch: int
    sequence: int
    dtype: str
    step: str
    device: str

    @property
    def has_kernel(self) -> bool:
        """Whether this run is one with the kernel."""
        return self.arm in _WITH_KERNEL


def plan() -> Plan:
    """What the environment says."""
    said = os.environ.get
    return Plan(
        arm=said("E2E_ARM", "baseline"),
        seed=int(said("E2E_SEED", "0")),
        batch=int(said("E2E_BATCH", "1")),
        sequence=int(said("E2E_SEQUENCE", "1")),
        dtype=said("E2E_DTYPE", "float32"),
        step=said("E2E_STEP", "forward"),
        device=said("E2E_DEVICE", "cpu"),
    )


def kernel() -> Callable[..., Any] | None:
    """The built kernel, called as its own file declares; None in runs without it. Its calls are counted.

    Raises:
        ValueError: a kernel of this kind has no function that could be called; `E2E_KERNEL` names its file.
    """
    asked = _asked()
    if asked is None:
        return None
    counted = _Counted(_function(asked), asked["outputs"] if plan().arm == "mutant" else None)
    _loaded.append(counted)
    return counted


def report(
    metric: float,
    outputs: Mapping[str, Any] | None = None,
    *,
    steps: int | None = None,
    calls: int | None = None,
) -> None:
    """Hand back what came of the run.

    `outputs`: tensors and arrays of real numbers, lists of them, or a text such as a digest, which must then be the
    same in every run with that seed. `calls` of the kernel: those of `kernel()`, unless the program loaded it itself.

    Units:
        metric: seconds per step, or a rate, as the workload's `command.metric` says.

    Raises:
        TypeError: an output is nothing of that kind.
    """
    folder = os.environ.get("E2E_OUT")
    said: dict[str, Any] = {"metric": float(metric), "steps": steps}
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    plain: dict[str, Any] = {}
    for name, value in (outputs or {}).items():
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            tensors[name] = _raw(name, value)
        else:
            plain[name] = value if isinstance(value, str) else [float(item) for item in value]
    said["outputs"] = plain
    asked = _asked()
    if asked is not None:
        number = sum(item.calls for item in _loaded) if calls is None else calls
        said["receipt"] = {"calls": number, "token": _token(asked)}
        said["zeroed"] = any(item.zeroed is not None for item in _loaded)
    if folder is None:
        print(json.dumps({**said, "tensors": {name: shape for name, (_, shape, _) in tensors.items()}}))
        return
    if tensors:
        said["file"] = "outputs.safetensors"
        (Path(folder) / said["file"]).write_bytes(_safetensors(tensors))
    part = Path(folder) / "report.json.part"
    part.write_text(json.dumps(said), encoding="utf-8")
    part.replace(Path(folder) / "report.json")


def _asked() -> dict[str, Any] | None:
    """What `E2E_KERNEL` says of the kernel."""
    place = os.environ.get("E2E_KERNEL")
    if place is None:
        return None
    found: dict[str, Any] = json.loads(Path(place).read_text(encoding="utf-8"))
    return found


def _token(asked: Mapping[str, Any]) -> str:
    artifact = Path(asked["artifact"])
    content = artifact.read_bytes() if artifact.is_file() else str(artifact).encode()
    return hashlib.sha256(f"{asked['nonce']}{hashlib.sha256(content).hexdigest()}".encode()).hexdigest()


class _Counted:
    """The kernel, with a count of its calls."""

    def __init__(self, function: Callable[..., Any], zeroed: Sequence[int] | None) -> None:
        self.calls = 0
        self.zeroed = zeroed
        """Places of the arguments that are outputs, to be zeroed; without any, what is returned is. None: nothing."""
        self._function = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        found = self._function(*args, **named)
        if self.zeroed is None:
            return found
        for place in self.zeroed:
            args[place][...] = 0
        return found if self.zeroed else _zeros(found)


def _zeros(value: Any) -> Any:
    return type(value)(map(_zeros, value)) if isinstance(value, tuple | list) else value * 0


def _function(asked: Mapping[str, Any]) -> Callable[..., Any]:
    binding, artifact, entry = asked["binding"], asked["artifact"], asked["entry"]
    if binding == "tvm-ffi":
        module = importlib.import_module("tvm_ffi").load_module(artifact, keep_module_alive=True)
        found: Callable[..., Any] = module.get_function(entry)
        return found
    if binding == "torch":
        importlib.import_module("torch")  # its library and its types come first
        loader = importlib.machinery.ExtensionFileLoader(asked["module"], artifact)
        return _attribute(_imported(asked["module"], artifact, loader), entry)
    if binding == "python" and artifact.endswith(".py"):
        sys.path.append(str(Path(artifact).parent))  # last, where its siblings hide nothing of anybody's
        return _attribute(_imported("e2e_kernel", artifact, None), entry)
    if binding == "python":
        return _attribute(importlib.import_module(artifact.partition(":")[0]), entry)
    raise ValueError(f"a kernel of the binding {binding} has no function to call; load it yourself from {artifact}")


def _imported(name: str, path: str, loader: Any) -> Any:
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and Triton look their module up
    spec.loader.exec_module(module)
    return module


def _attribute(module: Any, entry: str) -> Callable[..., Any]:
    for name in entry.split("."):
        module = getattr(module, name)
    found: Callable[..., Any] = module
    return found


def _raw(name: str, value: Any) -> tuple[str, list[int], bytes]:
    """Dtype, shape and bytes of a NumPy array or a torch tensor."""
    kind = str(value.dtype).removeprefix("torch.")
    if kind not in _DTYPES:
        raise TypeError(f"output {name!r} is of the dtype {kind}; hand over one of {', '.join(_DTYPES)}")
    shape = [int(size) for size in value.shape]
    if hasattr(value, "detach"):
        flat = value.detach().cpu().contiguous().reshape(-1)
        value = flat.view(importlib.import_module("torch").uint8).numpy()
    return _DTYPES[kind], shape, value.tobytes()


def _safetensors(tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> bytes:
    """The file format: length of the header, header in JSON, data."""
    header: dict[str, Any] = {}
    start = 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, start + len(data)]}
        start += len(data)
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(data for _, _, data in tensors.values())])
