from __future__ import annotations

import socket
from pathlib import Path

import pytest

from e2e import scalars, store
from e2e.errors import UsageError
from e2e.viewer import prepare
from tests import results


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
    assert "charts load from the internet" in viewer.text
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


def test_scalars_are_every_timed_segment_and_what_there_is_one_of() -> None:
    found = list(scalars.scalars(results.result()))
    times = [item for item in found if item.name == "step time, ms" and item.arm == "candidate:eager"]
    assert [item.step for item in times] == list(range(5 * 8 * 2))
    assert times[0].value == pytest.approx(71.27, rel=0.01)
    by_name = {(item.arm, item.name): item.value for item in found}
    assert by_name["baseline:eager+F.rms_norm", "KL, nats"] == 2.0e-5
    assert by_name["candidate:eager", "error of the outputs"] == 4.1e-3
    assert by_name["candidate:eager", "peak allocated, MiB"] == pytest.approx(5_620_000_000 / 2**20)


def test_what_was_not_measured_is_no_point() -> None:
    assert not list(scalars.scalars(results.incorrect()))


def test_scalars_and_the_report_are_written_once_beside_the_profiles(traced: Path) -> None:
    store.Run(traced).finish(results.result())
    assert "Scalars: step time" in prepare(traced, None).text
    logs = traced / "traces" / "tensorboard"
    written = sorted(logs.glob("*/events.out.tfevents.*"))
    assert {file.parent.name for file in written} >= {"candidate.eager", "baseline.eager.F.rms_norm", scalars.VERDICT}
    assert b"REFUTED" in next(file.read_bytes() for file in written if file.parent.name == scalars.VERDICT)
    prepare(traced, None)
    assert written == sorted(logs.glob("*/events.out.tfevents.*"))


def test_traces_of_a_damaged_run_are_shown_without_scalars(traced: Path) -> None:
    store.Run(traced).finish(results.result())
    (traced / store.SAMPLES).write_text("")
    assert "Without scalars and verdict: " in prepare(traced, None).text
