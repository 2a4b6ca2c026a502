"""What works on this machine, and which verdicts are possible here. A child process asks torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from e2e.builders._nvrtc import find_nvrtc, nvrtc_compiler
from e2e.builders._toolchain import Compiler, cuda_compiler, host_compiler
from e2e.cache import cache_folder
from e2e.errors import EnvironmentFault
from e2e.integrity.isolation import namespace_prefix
from e2e.integrity.sandbox import sandbox
from e2e.measure.machine import free_memory_bytes
from e2e.wording import clean, size

Status = Literal["ok", "missing", "cannot see"]

_PROBE_S = 90.0
"""A cold import of torch on a slow disk."""
_COMMAND_S = 15.0
_NETWORK_S = 3.0
_LITTLE_BYTES = 2 * 2**30
"""Less free memory or disk than this ends most runs."""

_PROBE = """
import json, torch
seen = {"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
if seen["available"]:
    seen["names"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    seen["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
print("e2e:" + json.dumps(seen))
"""

_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()"


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything looked at, and what follows."""

    checks: tuple[Check, ...]
    possible: tuple[str, ...]
    """Kinds of kernel that can be validated here."""
    impossible: tuple[str, ...]
    """Kinds that cannot, each with what is missing."""

    @property
    def code(self) -> int:
        """0 when at least one kind of verdict is possible, else 6."""
        return 0 if self.possible else 6


def diagnose() -> Diagnosis:
    """Look at everything; takes as long as one import of torch."""
    torch, device = _torch_and_device()
    checks = [
        Check("python", "ok" if sys.version_info >= (3, 11) else "missing", platform.python_version(), "3.11+"),
        torch,
        _package("transformers", "pip install transformers"),
        device,
        _driver(),
        _compiler("host compiler", host_compiler),
        _compiler("nvcc", cuda_compiler),
        _nvrtc(),
        _package("apache-tvm-ffi", "pip install apache-tvm-ffi"),
        _package("triton", "comes with CUDA builds of torch"),
        _package("ninja", "not needed by e2e; `torch/extension.h` builds use it"),
        _package("tensorboard", "pip install 'tensorboard>=2.21,<3'"),
        _package("torch-tb-profiler", "pip install torch-tb-profiler==0.4.3"),
        _nvml(),
        _namespace(),
        _sandbox(),
        _pressure(),
        _memory(),
        _disk(),
        _hub(),
    ]
    return conclude(checks)


def conclude(checks: list[Check]) -> Diagnosis:
    """Which kinds of kernel can be validated, given what works. Pure."""
    status = {check.name: check.status for check in checks}
    base = ["python", "torch", "transformers"]
    native = [*base, "apache-tvm-ffi"]
    needs = {
        "Python kernels on the CPU": base,
        ".cpp kernels on the CPU": [*native, "host compiler"],
        ".cu kernels": [*native, "CUDA device", "nvcc", "host compiler"],
        "bare .cu kernels (raw)": [*base, "CUDA device", "NVRTC" if status.get("NVRTC") == "ok" else "nvcc"],
        "Triton kernels": [*base, "CUDA device", "triton"],
    }
    lacking = {kind: [name for name in names if status.get(name) != "ok"] for kind, names in needs.items()}
    possible = tuple(kind for kind, names in lacking.items() if not names)
    impossible = tuple(f"{kind}: needs {', '.join(names)}" for kind, names in lacking.items() if names)
    return Diagnosis(tuple(checks), possible, impossible)


def render(diagnosis: Diagnosis) -> str:
    """One line per check, then the conclusion."""
    lines = []
    for check in diagnosis.checks:
        remedy = f" -> {check.remedy}" if check.remedy and check.status != "ok" else ""
        lines.append(f"{check.status:<10}  {check.name:<17}  {clean(check.detail)}{remedy}".rstrip())
    lines.append("")
    lines += [f"can validate here     {kind}" for kind in diagnosis.possible]
    lines += [f"cannot validate here  {kind}" for kind in diagnosis.impossible]
    return "\n".join(lines) + "\n"


# ---- One function per thing


def _torch_and_device() -> tuple[Check, Check]:
    """Asks a child process: torch takes seconds and a broken driver can crash it."""
    unknown = Check("CUDA device", "cannot see", "torch did not answer", "repair torch first")
    version = _version("torch")
    if version is None:
        return Check("torch", "missing", "", "pip install torch"), unknown
    said = _ask([sys.executable, "-P", "-c", _PROBE], seconds=_PROBE_S)
    line = next((line for line in said.lines if line.startswith("e2e:")), None)
    if line is None:
        return Check("torch", "missing", f"{version} does not start: {said.problem}", "reinstall torch"), unknown
    seen = json.loads(line.removeprefix("e2e:"))
    return Check("torch", "ok", f"{seen['version']} ({_build_of(seen)})"), _device(seen)


def _build_of(seen: Mapping[str, Any]) -> str:
    return f"built for CUDA {seen['cuda']}" if seen["cuda"] else "built for the CPU only"


def _device(seen: Mapping[str, Any]) -> Check:
    if seen["available"]:
        return Check("CUDA device", "ok", f"{', '.join(seen['names'])} (capability {seen['capability']})")
    remedy = "check `nvidia-smi` and CUDA_VISIBLE_DEVICES" if seen["cuda"] else "install a CUDA build of torch"
    return Check("CUDA device", "missing", f"torch sees none; it is {_build_of(seen)}", remedy)


def _driver() -> Check:
    if shutil.which("nvidia-smi") is None:
        return Check("NVIDIA driver", "missing", "no nvidia-smi", "only for .cu and Triton kernels")
    said = _ask(["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"])
    if said.problem or not said.lines:
        return Check("NVIDIA driver", "cannot see", said.problem or "nvidia-smi said nothing", "see nvidia-smi")
    return Check("NVIDIA driver", "ok", "; ".join(said.lines))


def _compiler(name: str, find: Callable[[], Compiler]) -> Check:
    try:
        return Check(name, "ok", find().identity)
    except EnvironmentFault as error:
        return Check(name, "missing", "", error.message.removesuffix(", then see `e2e doctor`"))


def _nvrtc() -> Check:
    found = find_nvrtc()
    if found is None:
        return Check("NVRTC", "missing", "", "only where there is no nvcc: pip install nvidia-cuda-nvrtc")
    return _compiler("NVRTC", lambda: nvrtc_compiler(found))


def _package(name: str, remedy: str) -> Check:
    version = _version(name)
    return Check(name, "ok", version) if version else Check(name, "missing", "", remedy)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvml() -> Check:
    """Clocks, power, temperature and other processes on the GPU."""
    if _version("nvidia-ml-py") is None:
        return Check("NVML", "missing", "no clocks, power or foreign processes", "pip install nvidia-ml-py")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check("NVML", "cannot see", str(error), "needs the NVIDIA driver")
    try:
        return Check("NVML", "ok", f"{pynvml.nvmlDeviceGetCount()} devices")
    finally:
        pynvml.nvmlShutdown()


def _namespace() -> Check:
    try:
        prefix = namespace_prefix(cuda=False)
    except (OSError, subprocess.TimeoutExpired):
        prefix = []
    if prefix:
        return Check("PID namespace", "ok", "no process outlives a run")
    return Check("PID namespace", "missing", "unshare is refused or absent", "runs work; a process could escape")


def _sandbox() -> Check:
    """Whether candidates can be kept from files and network; on a GPU each run tries once more, with the device."""
    with tempfile.TemporaryDirectory(prefix="e2e-doctor-") as folder:
        inside = Path(folder) / "inside"
        inside.mkdir()
        found = sandbox([inside], cuda=False)
    if found is not None:
        return Check("sandbox", "ok", f"candidates have read-only files and no network, by {found.how}")
    remedy = "runs work; candidates can do what this user can: install bubblewrap, or allow namespaces"
    return Check("sandbox", "missing", "neither bwrap nor unshare makes one", remedy)


def _pressure() -> Check:
    try:
        first = Path("/proc/pressure/cpu").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError as error:
        return Check("CPU pressure", "cannot see", str(error.strerror), "contention will not be noticed")
    return Check("CPU pressure", "ok", first)


def _memory() -> Check:
    free = free_memory_bytes()
    if free is None:
        return Check("free memory", "cannot see", "no /proc/meminfo")
    status: Status = "ok" if free >= _LITTLE_BYTES else "missing"
    return Check("free memory", status, f"{size(free)}, {os.cpu_count()} CPU threads", "free some")


def _disk() -> Check:
    try:
        folder = cache_folder()
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
    except (EnvironmentFault, OSError) as error:
        return Check("cache folder", "cannot see", str(error), "set E2E_CACHE_DIR")
    status: Status = "ok" if free >= _LITTLE_BYTES and os.access(existing, os.W_OK) else "missing"
    return Check("cache folder", status, f"{folder}, {size(free)} free", "set E2E_CACHE_DIR to a roomy folder")


def _hub() -> Check:
    """Only whether a connection opens, in a child: looking a name up has no time limit of its own."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Check("model hub", "missing", "HF_HUB_OFFLINE is set", "local models and the cache still work")
    address = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    host = address.hostname or ""
    port = "80" if address.scheme == "http" else "443"
    said = _ask([sys.executable, "-P", "-c", _CONNECT, host, port], seconds=_NETWORK_S)
    if said.problem:
        return Check("model hub", "missing", f"{host}: {said.problem}", "local models and the cache still work")
    return Check("model hub", "ok", host)


@dataclass(frozen=True)
class _Said:
    lines: list[str]
    problem: str = ""


def _ask(argv: list[str], *, seconds: float = _COMMAND_S) -> _Said:
    """A program's output; a problem in words when it fails, hangs or cannot start."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return _Said([], f"no answer in {seconds:.0f} s")
    except OSError as error:
        return _Said([], str(error.strerror))
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode == 0:
        return _Said(lines)
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    return _Said(lines, ": ".join([f"exit code {done.returncode}", *last]))
