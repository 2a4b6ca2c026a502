"""Run as a program, without site packages: gives up what a candidate needs not, then becomes the command it was given.

    python -I -S confine.py WRITABLE... -- COMMAND...

It starts inside namespaces of its own (`sandbox.py`), as their root. All files become read-only but for the folders
named, the system's settings below /proc among them; shared memory and `/run` are private and empty; no capability is
left, so that none of it can be undone. Nothing of e2e is imported: what runs here runs before anything else.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_MS_BIND = 4096
_RECURSIVE, _HERE = 0x8000, -100
_RDONLY = 1
_MOUNT_SETATTR = 442
"""The same number on every architecture (Linux 5.12)."""
_CAPSET = {"x86_64": 126, "aarch64": 91, "ppc64le": 184}
_CAPABILITY_VERSION = 0x20080522
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_KEPT = ("/proc",)
"""Written to by whoever names its threads or resets its peak memory; it shows this namespace's processes only."""
_SYSTEM = tuple(f"/proc/{name}" for name in ("acpi", "bus", "fs", "irq", "scsi", "sys", "sysrq-trigger"))
"""Of the machine and not of a process: root needs no capability to write there."""
_COVERED = ("/dev/shm", "/run")
"""Shared memory, and sockets of the machine's services, which a read-only file system keeps nobody from."""


def main(arguments: list[str]) -> None:
    """Never returns.

    Raises:
        OSError: this system refuses a part of it.
    """
    end = arguments.index("--")
    writable, command = arguments[:end], arguments[end + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    for folder in writable:
        _done(libc.mount(folder.encode(), folder.encode(), None, _MS_BIND, None), folder)
    _set(libc, "/", _RECURSIVE, wanted=_RDONLY, dropped=0)
    for folder in (*writable, *_KEPT):
        _set(libc, folder, 0, wanted=0, dropped=_RDONLY)
    for place in filter(os.path.exists, _SYSTEM):
        _done(libc.mount(place.encode(), place.encode(), None, _MS_BIND, None), place)
        _set(libc, place, 0, wanted=_RDONLY, dropped=0)
    for place in filter(os.path.isdir, _COVERED):
        if not any(os.path.realpath(folder).startswith(f"{place}/") for folder in writable):
            _done(libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, b"mode=1777"), place)
    _drop_capabilities(libc)
    os.execvp(command[0], command)


def _set(libc: ctypes.CDLL, place: str, flags: int, *, wanted: int, dropped: int) -> None:
    """Change attributes of a mount, or with all below it."""
    attributes = struct.pack("4Q", wanted, dropped, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    _done(libc.syscall(_MOUNT_SETATTR, _HERE, place.encode(), flags, attributes, size), place)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for capability in range(last + 1):
        _done(libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), f"capability {capability}")
    _done(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _done(libc.syscall(_CAPSET[platform.machine()], header, bytes(24)), "capabilities")


def _done(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    main(sys.argv[1:])
