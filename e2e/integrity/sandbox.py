"""Where a candidate's processes live: the strongest confinement that this machine allows, found by trying."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.integrity.isolation import CUDA_PROBE, PROBE_S, namespace_prefix

CONFINE = Path(__file__).with_name("confine.py")
_PROBE = """
import os, socket, sys
inside, outside = sys.argv[1:3]
closed = [outside, "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"]
holds = (
    os.access(inside, os.W_OK) and not any(os.access(place, os.W_OK) for place in closed)
    and all(name == "lo" for _, name in socket.if_nameindex())
    and os.getpid() == 1
    and "CapEff:\\t0000000000000000\\n" in open("/proc/self/status").read()
)
sys.exit(not holds)
"""
"""Whether the folder can be written, the one around it and the system's own settings cannot, nothing leads outside,
processes are a tree of their own, and no capability is left to undo that."""


@dataclass(frozen=True)
class Confinement:
    """How a zygote is started, and what that keeps its processes from."""

    prefix: tuple[str, ...] = ()
    """Of its command."""
    how: str | None = None
    """The program that makes the sandbox; None where there is none."""

    @property
    def is_sandbox(self) -> bool:
        """Files are read-only but for a few folders, and there is no network."""
        return self.how is not None

    @property
    def has_namespace(self) -> bool:
        """Nothing outlives the zygote."""
        return bool(self.prefix)


def sandbox(writable: Sequence[Path], *, cuda: bool) -> Confinement | None:
    """The first sandbox that works here; None where none does.

    `writable`: folders that are there, of which the first has a parent that must not be written to.
    """
    for how, prefix in _sandboxes(writable).items():
        probe = [*prefix, sys.executable, "-S", "-c", _PROBE, str(writable[0]), str(writable[0].parent)]
        device = [*prefix, sys.executable, "-S", "-c", CUDA_PROBE]
        if _works(probe) and (not cuda or _works(device)):
            return Confinement(tuple(prefix), how)
    return None


def namespace(*, cuda: bool) -> Confinement:
    """A PID namespace where the machine allows it, else nothing."""
    return Confinement(tuple(namespace_prefix(cuda=cuda)))


def _sandboxes(writable: Sequence[Path]) -> Mapping[str, list[str]]:
    """Command prefixes, by the program that makes each."""
    return {how: prefix for how, prefix in _ways(list(map(str, writable))) if shutil.which(how) is not None}


def _ways(writable: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    open_again = [word for folder in writable for word in ("--bind", folder, folder)]
    read_only = ["--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--tmpfs", "/dev/shm", "--tmpfs", "/run"]
    read_only += ["--proc", "/proc"]
    alone = ["--unshare-pid", "--as-pid-1", "--unshare-net", "--die-with-parent", "--cap-drop", "ALL"]
    yield "bwrap", ["bwrap", *read_only, *open_again, *alone, "--"]
    own = ["unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--net"]
    own += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    yield "unshare", [*own, sys.executable, "-I", "-S", str(CONFINE), *writable, "--"]


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=PROBE_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
