"""What a candidate's processes can reach. Real processes: nothing of this can be believed from a fake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.integrity import sandbox as module
from e2e.integrity.isolation import namespace_prefix
from e2e.integrity.sandbox import Confinement, namespace, sandbox

LOOK = """
import json, os, socket, sys

def writes(folder):
    try:
        with open(os.path.join(folder, "written"), "w") as file:
            file.write("x")
        return True
    except OSError:
        return False

def dials():
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[3])), timeout=2).close()
        return True
    except OSError:
        return False

status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
with open(os.devnull, "w") as null:
    null.write("x")
print(json.dumps({
    "inside": writes(sys.argv[1]),
    "outside": writes(sys.argv[2]),
    "network": dials(),
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "shared": (writes("/dev/shm"), os.listdir("/dev/shm")),
    "remounted": os.system("mount -o remount,rw / 2>/dev/null") == 0,
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a process in the sandbox sees, with a listening port on this machine."""
    import socket

    inside = tmp_path_factory.mktemp("around") / "inside"
    inside.mkdir()
    confinement = sandbox([inside], cuda=False)
    if confinement is None:
        pytest.skip("no sandbox works here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = subprocess.run(
            [*confinement.prefix, sys.executable, "-S", "-c", LOOK, str(inside), str(inside.parent), str(port)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (inside / "written").exists()
    seen: dict[str, object] = json.loads(done.stdout)
    return seen


def test_only_folders_of_its_own_can_be_written_to(found: dict[str, object]) -> None:
    assert (True, False) == (found["inside"], found["outside"])


def test_not_even_this_machine_can_be_dialled(found: dict[str, object]) -> None:
    assert found["network"] is False


def test_no_process_but_its_own_is_seen(found: dict[str, object]) -> None:
    assert ["1"] == found["processes"]


def test_no_capability_is_left_to_undo_it(found: dict[str, object]) -> None:
    assert (0, False) == (found["capabilities"], found["remounted"])


def test_shared_memory_is_its_own_and_empty(found: dict[str, object]) -> None:
    assert [True, ["written"]] == found["shared"]
    assert not Path("/dev/shm/written").exists()


# ---- Which one is used


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "around" / "inside"
    folder.mkdir(parents=True)
    return folder


def test_a_sandbox_that_does_not_hold_is_not_used(
    inside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs the command as it is, as a bwrap without rights might."""
    program(tmp_path, "bwrap", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    used = sandbox([inside], cuda=False)
    assert used is None or used.how == "unshare"


@pytest.mark.parametrize("text", ["exit 1", "exec sleep 60"])
def test_a_sandbox_that_is_refused_or_hangs_leaves_the_next_one(
    inside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.5)
    usual = sandbox([inside], cuda=False)
    program(tmp_path, "bwrap", text)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert usual == sandbox([inside], cuda=False)


def test_bubblewrap_is_asked_for_the_same_before_anything_of_our_own(inside: Path) -> None:
    ways = dict(module._ways([str(inside)]))
    assert ["bwrap", "unshare"] == list(ways)
    words = " ".join(ways["bwrap"])
    for part in (f"--bind {inside} {inside}", "--ro-bind / /", "--unshare-net", "--as-pid-1", "--dev-bind /dev /dev"):
        assert part in words


def test_without_any_program_there_is_none_and_no_error(
    inside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sandbox([inside], cuda=False) is None
    assert Confinement() == namespace(cuda=False)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a CUDA driver")
def test_a_sandbox_in_which_cuda_does_not_start_is_not_used(inside: Path) -> None:
    assert sandbox([inside], cuda=True) is None


def test_a_namespace_is_no_sandbox() -> None:
    found = namespace(cuda=False)
    assert (found.is_sandbox, found.has_namespace) == (False, bool(namespace_prefix(cuda=False)))


def test_the_systems_own_settings_and_its_services_sockets_are_out_of_reach(tmp_path: Path) -> None:
    confinement = sandbox([tmp_path], cuda=False)
    if confinement is None:
        pytest.skip("no sandbox works here")
    look = "import os; print(os.access('/proc/sys/kernel/core_pattern', os.W_OK), os.listdir('/run'))"
    done = subprocess.run(
        [*confinement.prefix, sys.executable, "-S", "-c", look], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False []\n"
