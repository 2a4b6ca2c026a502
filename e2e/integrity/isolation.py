"""What a process does to itself so that it cannot outlive its parent, and what it is given to see."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1
WARM_COMPILER = "E2E_WARM_COMPILER"
"""Variable that tells a zygote to warm torch's compiler before it forks: `compile` something small, or, where a device
is there and Dynamo would save its random state and so touch it, only `import` what compiling imports."""
_SECRET = re.compile(
    r"TOKEN(?!IZER)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|AUTH(?!OR)|API_?KEY|(ACCESS|PRIVATE)_?KEY|_KEY$",
    re.I,
)
PROBE_S = 20.0
"""A namespace is made in milliseconds, a driver answers in seconds; what takes longer is held back by something."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Linux only; elsewhere nothing happens."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return


def namespace_prefix(*, cuda: bool) -> list[str]:
    """Command prefix that puts a process tree into its own PID namespace, or nothing where that is refused.

    Inside it nothing outlives the first process, however often it forks or changes session. It needs a /proc of
    its own: CUDA looks its process up there, and fails with error 304 where the numbers are another namespace's.
    """
    if shutil.which("unshare") is None:
        return []
    command = ["unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
    if os.geteuid() != 0:
        command += ["--user", "--map-current-user"]
    inside = [sys.executable, "-S", "-c", CUDA_PROBE] if cuda else ["true"]
    try:
        probe = subprocess.run([*command, *inside], capture_output=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return []
    return command if probe.returncode == 0 else []


CUDA_PROBE = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0))"


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment less variables whose names look like credentials."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name)}


def limit_address_space(extra_bytes: int) -> None:
    """Let this process map at most `extra_bytes` more than it has now (CPU workers: CUDA needs huge maps)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit = mapped + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
