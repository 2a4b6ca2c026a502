"""A process that imports torch and transformers once, and forks a fresh worker whenever it is asked.

Started by the parent as `python -P -m e2e.zygote FD MODULE...`; speaks JSON packets on FD. It stays
single-threaded and touches no device: a fork copies only the calling thread, and a CUDA context does not
survive one. OpenMP is the trap: any parallel region before the fork hangs every child, hence one thread here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from e2e.integrity.isolation import WARM_COMPILER, die_with_parent
from e2e.integrity.quiescence import processes, used_s

PACKET_BYTES = 65536
THREADED = ("sklearn", "pandas", "pyarrow", "numexpr", "jax", "tensorflow", "datasets")
"""Packages that transformers imports where it finds them, which start threads, and which no step needs."""

COMPILER_MODULES = (
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.triton",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.cudagraph_trees",
    "torch._inductor.kernel.mm",
    "triton.compiler",
    "triton.language",
)
"""What compiling for a device imports; importing them touches none."""


def main() -> None:
    """Serve `spawn`, `warm`, `used`, `kill` and `wait` until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    control = socket.socket(fileno=int(sys.argv[1]))
    _reply(control, _preload(sys.argv[2:]))
    statuses: dict[int, int] = {}
    workers: set[int] = set()
    while True:
        data, fds, _, _ = socket.recv_fds(control, PACKET_BYTES, 3)
        if not data:
            break
        request: dict[str, Any] = json.loads(data)
        _reap(statuses)
        if request["do"] == "spawn":
            pid = os.fork()
            if pid == 0:
                control.close()
                _become_worker(fds, request)
            for fd in fds:
                os.close(fd)
            workers.add(pid)
            _reply(control, {"pid": pid})
        elif request["do"] == "used":
            workers -= set(statuses)
            _reply(control, {"used_s": used_s(processes(), request["pid"], others=workers, zygote=os.getpid())})
        elif request["do"] == "warm":
            _warm_compiler(os.environ.pop(WARM_COMPILER, None))
            _reply(control, _state())
        elif request["do"] == "kill":
            _kill(request["pid"])
            _reply(control, {"status": _wait(request["pid"], 5.0, statuses)})
        elif request["do"] == "wait":
            _reply(control, {"status": _wait(request["pid"], request["timeout_s"], statuses)})


def _preload(modules: list[str]) -> dict[str, Any]:
    blocked = [name for name in THREADED if name not in sys.modules]
    for name in blocked:
        sys.modules[name] = None  # type: ignore[assignment]  # an optional import then fails as if not installed
    import torch
    import tqdm

    torch.set_num_threads(1)
    tqdm.tqdm.monitor_interval = 0  # its monitor is a thread
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):  # a model family without a module of its own is no fault
                raise
    for name in blocked:
        del sys.modules[name]
    return _state()


def _state() -> dict[str, Any]:
    """What a fork would not survive, as far as it is there."""
    import torch

    threads = [Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")]
    return {"threads": threads, "cuda_initialized": bool(torch.cuda.is_initialized())}


def _warm_compiler(how: str | None) -> None:
    """A process's first compilation imports for seconds: here once, instead of in every worker."""
    import torch

    if how == "compile":
        torch.compile(lambda x: x.sin() + 1.0)(torch.ones(8))
    for name in COMPILER_MODULES if how == "import" else ():
        with contextlib.suppress(ImportError):  # they move between versions, and Triton may be missing
            importlib.import_module(name)


def _become_worker(fds: list[int], request: dict[str, Any]) -> None:
    """Never returns. The parent-death signal and the new session make it easy to end; fds above 3 are closed."""
    die_with_parent()
    os.setsid()
    os.environ.pop(WARM_COMPILER, None)
    channel, out, err = fds
    null = os.open(os.devnull, os.O_RDONLY)
    high = [os.dup2(fd, 1000 + place, inheritable=False) for place, fd in enumerate((null, out, err, channel))]
    for place, fd in enumerate(high):
        os.dup2(fd, place, inheritable=True)
    os.closerange(4, 4096)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from e2e.worker import run

    code = 1
    try:
        code = run(socket.socket(fileno=3), request)
    finally:
        os._exit(code)


def _kill(pid: int) -> None:
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _wait(pid: int, timeout_s: float, statuses: dict[int, int]) -> int | None:
    """Exit status as os.waitstatus_to_exitcode gives it (negative: signal), or None while it runs."""
    end = time.monotonic() + timeout_s
    while True:
        _reap(statuses)
        if pid in statuses or time.monotonic() >= end:
            return statuses.get(pid)
        time.sleep(0.005)


def _reap(statuses: dict[int, int]) -> None:
    """Collect every ended child; in a PID namespace orphans arrive here too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        statuses[pid] = os.waitstatus_to_exitcode(status)


def _reply(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())


if __name__ == "__main__":
    main()
