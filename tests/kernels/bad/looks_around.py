# /// e2e
# op: rms_norm
# entry: norm
# ///
"""Right, but first it tries what a candidate has no business with, and says what it could do."""

import os
import socket
import tempfile
from pathlib import Path

import torch


def _writes(folder):
    try:
        (Path(folder) / "e2e-test-was-here").write_text("x")
        (Path(folder) / "e2e-test-was-here").unlink()
        return True
    except OSError:
        return False


def _dials():
    try:
        socket.create_connection(("127.0.0.1", int(os.environ["E2E_TEST_PORT"])), timeout=2).close()
        return True
    except OSError:
        return False


def _found():
    secrets = [name for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY") if name in os.environ]
    places = [place for place in (Path.cwd(), Path.home(), Path(__file__).parent, "/tmp") if _writes(place)]
    parents = [name for name in os.listdir("/proc") if name.isdigit() and b"validate" in _command(name)]
    return {"secrets": secrets, "files": places, "network": _dials(), "processes": parents}


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


FOUND = _found()
assert _writes(tempfile.gettempdir()), "its own temporary folder is its own"


def norm(x, weight, eps):
    if any(FOUND.values()):
        raise RuntimeError(f"it could reach {FOUND}")
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
