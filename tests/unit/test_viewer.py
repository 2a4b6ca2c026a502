from __future__ import annotations

import socket
from pathlib import Path

import pytest

from e2e.errors import UsageError
from e2e.viewer import prepare


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    logs = tmp_path / "traces" / "tensorboard" / "baseline.eager"
    logs.mkdir(parents=True)
    (logs / "worker.1.pt.trace.json.gz").write_bytes(b"")
    (tmp_path / "traces" / "baseline.eager.pt.trace.json.gz").write_bytes(b"")
    return tmp_path


def test_the_address_and_the_other_timelines_are_told(traced: Path) -> None:
    viewer = prepare(traced, None)
    assert "http://127.0.0.1:" in viewer.text
    assert str(traced / "traces" / "baseline.eager.pt.trace.json.gz") in viewer.text
    assert "stay empty without it" in viewer.text
    assert str(traced / "traces" / "tensorboard") in viewer.argv
    assert "-P" in viewer.argv


def test_a_run_without_traces_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ended before them, or ran with --no-trace"):
        prepare(tmp_path, None)


def test_a_taken_port_is_said_before_anything_starts(traced: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is taken"):
            prepare(traced, port)
