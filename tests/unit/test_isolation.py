"""What a worker is given to see, and what ends it. Real processes: nothing of this can be believed from a fake."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.integrity.isolation import namespace_prefix, without_secrets

REPOSITORY = Path(__file__).parents[2]
SOON_S = 2.0
LINUX = sys.platform == "linux"

needs_linux = pytest.mark.skipif(not LINUX, reason="uses /proc and prctl")
needs_namespaces = pytest.mark.skipif(not namespace_prefix(cuda=False), reason="PID namespaces are refused here")

SLEEPER = """
import time
from e2e.integrity.isolation import die_with_parent
die_with_parent()
print("up", flush=True)
time.sleep(60)
"""
ESCAPER = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.wait()
print("up", flush=True)
time.sleep(60)
"""


def python(code: str, *arguments: str, prefix: list[str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*(prefix or []), sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def output_of(code: str, *arguments: str) -> str:
    process = python(code, *arguments)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    return out.strip()


def marked(mark: str) -> set[int]:
    """Processes with that text among their arguments, zombies left out."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "cmdline").read_text():
                found.add(int(folder.name))
    return found


def gone_soon(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + SOON_S
    while condition() and time.monotonic() < end:
        time.sleep(0.02)
    return not condition()


# ---- Environment


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN",
        "OPENAI_API_KEY", "SOMEAPIKEY", "GITHUB_TOKEN", "DB_PASSWORD", "PGPASSWORD", "MYSQL_PASSWD",
        "GOOGLE_APPLICATION_CREDENTIALS", "SSH_PRIVATE_KEY", "SESSION_COOKIE", "db_password", "GPG_PASSPHRASE",
        "SSH_AUTH_SOCK", "NPM_CONFIG__AUTH", "AZURE_STORAGE_KEY",
    ],
)  # fmt: skip
def test_a_variable_that_is_named_like_a_secret_is_not_passed_on(name: str) -> None:
    assert without_secrets({name: "s3cret", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT",
        "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "GIT_AUTHOR_NAME", "XDG_CACHE_HOME", "HTTPS_PROXY", "KEYBOARD",
        "TRITON_CACHE_DIR", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "E2E_CACHE_DIR",
    ],
)  # fmt: skip
def test_a_variable_that_runs_need_is_passed_on(name: str) -> None:
    assert without_secrets({name: "value"}) == {name: "value"}


def test_the_callers_environment_itself_is_not_changed() -> None:
    given = {"HF_TOKEN": "x", "PATH": "/bin"}
    without_secrets(given)
    assert given == {"HF_TOKEN": "x", "PATH": "/bin"}


# ---- Life and death


@needs_linux
def test_a_process_that_asked_for_it_dies_with_its_parent() -> None:
    mark = f"dies-with-parent-{os.getpid()}"
    parent = python(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]], stdout=sys.stdout,"
        " start_new_session=True)\n"
        "child.wait()",
        SLEEPER,
        mark,
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        child = marked(mark) - {parent.pid}
        assert len(child) == 1
        parent.kill()
        parent.wait()
        assert gone_soon(lambda: marked(mark))
    finally:
        parent.kill()
        parent.communicate()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


@needs_namespaces
def test_in_a_namespace_the_first_process_is_number_one() -> None:
    process = python("import os; print(os.getpid())", prefix=namespace_prefix(cuda=False))
    out, err = process.communicate(timeout=30)
    assert (out, process.returncode) == ("1\n", 0), err


@needs_namespaces
def test_in_a_namespace_no_double_fork_outlives_the_first_process() -> None:
    mark = f"escapes-{os.getpid()}"
    process = python(ESCAPER, mark, prefix=namespace_prefix(cuda=False))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert len(marked(mark) - {process.pid}) == 2, "the first process and its escaped grandchild"
        process.kill()
        process.wait()
        assert gone_soon(lambda: marked(mark))
    finally:
        process.kill()
        process.communicate()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


@needs_namespaces
def test_a_namespace_has_a_proc_of_its_own() -> None:
    """A candidate sees no process but its own, and CUDA finds itself under its own number."""
    code = "import os; print(os.readlink('/proc/self'), sorted(n for n in os.listdir('/proc') if n.isdigit()))"
    process = python(code, prefix=namespace_prefix(cuda=False))
    out, err = process.communicate(timeout=30)
    assert out == "1 ['1']\n", err


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a CUDA driver")
def test_a_namespace_in_which_cuda_does_not_start_is_not_used() -> None:
    assert namespace_prefix(cuda=True) == []


def test_without_unshare_there_is_no_prefix_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert namespace_prefix(cuda=False) == []


def test_an_unshare_that_is_refused_gives_no_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert namespace_prefix(cuda=False) == []


def test_an_unshare_that_hangs_gives_no_prefix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Seen in containers whose seccomp filter stops the call instead of refusing it."""
    hanging = tmp_path / "unshare"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("e2e.integrity.isolation.PROBE_S", 0.2)
    assert namespace_prefix(cuda=False) == []


# ---- Memory


@needs_linux
def test_an_address_limit_stops_what_goes_beyond_it_and_nothing_before() -> None:
    code = """
from e2e.integrity.isolation import limit_address_space
limit_address_space(256 * 2**20)
small = bytearray(64 * 2**20)
try:
    bytearray(1024 * 2**20)
except MemoryError:
    print("stopped")
"""
    assert output_of(code) == "stopped"
