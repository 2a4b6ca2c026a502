"""Zygotes and workers: the parent believes no message that answers nothing, and ends what it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.errors import E2EError, EnvironmentFault
from e2e.integrity.channel import Channel, ChannelClosed
from e2e.integrity.isolation import namespace_prefix
from e2e.processes import Worker, WorkerFault, Zygote

SHORT_S = 0.1
LONG_S = 20.0

Script = Callable[[Channel, dict[str, Any]], None]


class FakeZygote:
    """Says how a worker ended, and counts kills."""

    def __init__(self, status: int | None = None) -> None:
        self.status = status
        self.killed: list[int] = []

    def kill(self, pid: int) -> int | None:
        self.killed.append(pid)
        return self.status

    def wait(self, pid: int, timeout_s: float) -> int | None:
        return self.status


class Scripted:
    """A worker whose other end is a thread that follows a script, request by request."""

    def __init__(self, folder: Path, script: Script, *, status: int | None = None) -> None:
        ours, self._theirs = socket.socketpair()
        self.zygote = FakeZygote(status)
        self.worker = Worker(self.zygote, 4711, Channel(ours), folder / "log")  # type: ignore[arg-type]
        self._script = script
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        channel = Channel(self._theirs)
        with contextlib.suppress(ChannelClosed):
            while True:
                self._script(channel, channel.receive())

    def close(self) -> None:
        self.worker.close()
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._theirs.close()


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(script: Script, *, status: int | None = None) -> Scripted:
        made.append(Scripted(tmp_path, script, status=status))
        return made[-1]

    yield make
    for item in made:
        item.close()


def honest(channel: Channel, request: dict[str, Any]) -> None:
    """Marks twice where it is asked to go, then answers with what it was asked, or what ran."""
    if request["do"] == "go":
        for _ in range(2):
            channel.send({"mark": 1, "id": request["id"]})
        channel.send({**RAN, "id": request["id"]})
    else:
        channel.send({"did": request["do"], "id": request["id"]})


RAN = {"digests": [], "device_s": None, "allocations": None, "recompiled": False}


def answering(*messages: dict[str, Any]) -> Script:
    """Sends these; `id` stands for the request's number."""

    def script(channel: Channel, request: dict[str, Any]) -> None:
        for message in messages:
            channel.send({key: request["id"] if value == "id" else value for key, value in message.items()})

    return script


def fault_of(worker: Worker, do: str = "work", **options: Any) -> WorkerFault:
    with pytest.raises(WorkerFault) as caught:
        worker.stamps(do, **options) if "marks" in options else worker.call(do, **options)
    return caught.value


# ---- Answers


def test_an_answer_belongs_to_its_request(scripted: Callable[..., Scripted]) -> None:
    worker = scripted(honest).worker
    assert [worker.call(do, timeout_s=LONG_S) for do in ("a", "b")] == [{"did": "a"}, {"did": "b"}]


def test_requests_may_wait_for_their_answers_in_order(scripted: Callable[..., Scripted]) -> None:
    worker = scripted(honest).worker
    for do in "abc":
        worker.send(do)
    assert [worker.answer(do, timeout_s=LONG_S)["did"] for do in "abc"] == ["a", "b", "c"]


def test_a_segment_has_a_stamp_for_every_mark_and_none_for_the_answer(scripted: Callable[..., Scripted]) -> None:
    stamps, reply = scripted(honest).worker.stamps("go", marks=2, timeout_s=LONG_S)
    assert len(stamps) == 2
    assert stamps[0] < stamps[1]
    assert reply == RAN


def test_what_the_worker_raised_is_told_with_its_code_and_line(scripted: Callable[..., Scripted]) -> None:
    fault = {"message": "no entry", "code": "bind_failed", "line": 3}
    found = fault_of(scripted(answering({"fault": fault, "id": "id"})).worker, timeout_s=LONG_S)
    assert (found.kind, found.reason, found.line, found.message) == ("raised", "bind_failed", 3, "no entry")


@pytest.mark.parametrize("fault", [{}, {"message": ["list"], "code": 7, "line": "x"}, {"message": "m" * 100_000}])
def test_an_odd_fault_is_still_a_fault(scripted: Callable[..., Scripted], fault: dict[str, Any]) -> None:
    found = fault_of(scripted(answering({"fault": fault, "id": "id"})).worker, timeout_s=LONG_S)
    assert (found.kind, found.reason, found.line) == ("raised", None, None)
    assert len(found.message) <= 4000


def test_a_worker_that_raised_goes_on_serving(scripted: Callable[..., Scripted]) -> None:
    def script(channel: Channel, request: dict[str, Any]) -> None:
        channel.send({"id": request["id"], **({"fault": {}} if request["do"] == "bad" else {})})

    worker = scripted(script).worker
    fault_of(worker, "bad", timeout_s=LONG_S)
    assert worker.call("good", timeout_s=LONG_S) == {}
    assert worker.alive


# ---- Messages that answer nothing


@pytest.mark.parametrize(
    "messages",
    [
        [{"did": "work"}],
        [{"did": "work", "id": ""}],
        [{"did": "work", "id": "0123456789abcdef"}],
        [{"did": "work", "id": 7}],
        [{"mark": 1, "id": "id"}, {"did": "work", "id": "id"}],
    ],
    ids=["no number", "an empty number", "another number", "no text", "a mark that was not asked for"],
)
def test_a_message_of_the_candidates_own_ends_its_worker(
    scripted: Callable[..., Scripted], messages: list[dict[str, Any]]
) -> None:
    made = scripted(answering(*messages))
    assert fault_of(made.worker, timeout_s=LONG_S).kind == "garbage"
    assert made.zygote.killed == [4711]
    assert not made.worker.alive


def test_an_answer_sent_twice_ends_its_worker_at_the_next_request(scripted: Callable[..., Scripted]) -> None:
    worker = scripted(answering({"id": "id"}, {"id": "id"})).worker
    worker.call("first", timeout_s=LONG_S)
    assert fault_of(worker, "second", timeout_s=LONG_S).kind == "garbage"


@pytest.mark.parametrize("marks", [0, 1, 3])
def test_a_segment_with_another_number_of_marks_is_nobodys_time(scripted: Callable[..., Scripted], marks: int) -> None:
    """One more, sent early, would make the segment as short as the candidate likes."""
    messages = [{"mark": 1, "id": "id"}] * marks + [{"id": "id"}]
    made = scripted(answering(*messages))
    assert fault_of(made.worker, "go", marks=2, timeout_s=LONG_S).kind == "garbage"
    assert made.zygote.killed


def test_a_mark_without_the_requests_number_is_nobodys_time(scripted: Callable[..., Scripted]) -> None:
    made = scripted(answering({"mark": 1}, {"mark": 1, "id": "id"}, {"id": "id"}))
    assert fault_of(made.worker, "go", marks=2, timeout_s=LONG_S).kind == "garbage"


def test_bytes_that_are_no_message_end_the_worker(scripted: Callable[..., Scripted]) -> None:
    def script(channel: Channel, request: dict[str, Any]) -> None:
        channel._sock.sendall(b"\xff" * 64)

    made = scripted(script)
    assert fault_of(made.worker, timeout_s=LONG_S).kind == "garbage"
    assert made.zygote.killed


# ---- Ends


def test_no_answer_in_time_ends_the_worker(scripted: Callable[..., Scripted]) -> None:
    made = scripted(lambda channel, request: None)
    assert fault_of(made.worker, timeout_s=SHORT_S).kind == "timed_out"
    assert made.zygote.killed


def test_marks_do_not_buy_a_segment_more_time(scripted: Callable[..., Scripted]) -> None:
    def script(channel: Channel, request: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            while True:
                channel.send({"mark": 1, "id": request["id"]})
                time.sleep(SHORT_S / 4)

    started = time.monotonic()
    assert fault_of(scripted(script).worker, "go", marks=2, timeout_s=2 * SHORT_S).kind == "timed_out"
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (-signal.SIGSEGV, "crashed", "SIGSEGV"),
        (-signal.SIGABRT, "crashed", "SIGABRT"),
        (0, "exited", "status 0"),
        (3, "exited", "status 3"),
        (None, "exited", "None"),
    ],
)
def test_how_a_worker_ended_is_in_its_fault(
    scripted: Callable[..., Scripted], status: int | None, kind: str, words: str
) -> None:
    def hang_up(channel: Channel, request: dict[str, Any]) -> None:
        channel._sock.shutdown(socket.SHUT_RDWR)

    found = fault_of(scripted(hang_up, status=status).worker, timeout_s=LONG_S)
    assert found.kind == kind
    assert words in found.message


def test_only_the_end_of_what_a_worker_printed_is_read(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    """A candidate may print for minutes."""
    with (tmp_path / "log").open("wb") as file:
        file.truncate(2**36)  # sparse: reading it whole would need 64 GiB
        file.seek(0, os.SEEK_END)
        file.write("\N{GREEK SMALL LETTER MU} the end".encode())
    assert scripted(honest).worker.output(9).endswith("\N{GREEK SMALL LETTER MU} the end")


def test_a_worker_that_printed_nothing_said_nothing(scripted: Callable[..., Scripted]) -> None:
    assert scripted(honest).worker.output() == ""


# ---- Real zygotes: one import of torch each


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """With a model family that has no module of its own, as `gemma3_text` in Transformers."""
    log = tmp_path_factory.mktemp("zygote") / "log"
    made = Zygote(
        ["json", "no_such_package", "email.no_such_family.modeling"],
        environment={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        prefix=namespace_prefix(cuda=False),
        log=log,
    )
    yield made
    made.close()


def spawned(zygote: Zygote, folder: Path) -> Worker:
    return zygote.spawn({"clean": True, "environment": {}}, log=folder / "worker.log")


def test_a_zygote_has_one_thread_and_no_device(zygote: Zygote) -> None:
    assert zygote.ready(60)["cuda_initialized"] is False
    assert len(zygote.threads) == 1


def test_a_worker_is_up_in_no_time_and_answers(zygote: Zygote, tmp_path: Path) -> None:
    zygote.ready(60)
    started = time.monotonic()
    with spawned(zygote, tmp_path) as worker:
        fault = fault_of(worker, "what_nobody_knows", timeout_s=LONG_S)
    assert time.monotonic() - started < 2
    assert (fault.kind, "do_what_nobody_knows" in fault.message) == ("raised", True)


def test_a_zygote_that_was_told_to_warm_up_answers_what_it_is_asked_next(zygote: Zygote, tmp_path: Path) -> None:
    with spawned(zygote, tmp_path) as worker:
        zygote.warm()
        assert zygote.wait(worker.pid, 0.0) is None, "the worker lives; that is not the answer to the warm-up"
        zygote.warm()
        with spawned(zygote, tmp_path) as other:
            assert other.pid != worker.pid
    assert len(zygote.threads) == 1


def test_a_clean_worker_refuses_to_load_a_candidate(zygote: Zygote, tmp_path: Path) -> None:
    with spawned(zygote, tmp_path) as worker:
        assert (
            "never loads a candidate"
            in fault_of(worker, "bind", timeout_s=LONG_S, built={}, fqns=[], adopted={}).message
        )


def test_a_killed_worker_is_seen_as_crashed_and_the_next_one_is_fresh(zygote: Zygote, tmp_path: Path) -> None:
    worker = spawned(zygote, tmp_path)
    other = spawned(zygote, tmp_path)
    assert worker.pid != other.pid
    assert worker.kill() == -signal.SIGKILL
    assert fault_of(other, "nothing", timeout_s=LONG_S).kind == "raised", "it lives on"
    other.close()


def test_imports_that_fail_are_the_environments_fault_with_their_words(tmp_path: Path) -> None:
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('no driver for this')\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    made = Zygote(["broken_package"], environment={**os.environ, "PYTHONPATH": path}, prefix=[], log=tmp_path / "log")
    with pytest.raises(EnvironmentFault, match="no driver for this"):
        made.ready(60)
    made.close()


def test_a_zygote_that_is_gone_is_a_fault_and_not_a_hang(tmp_path: Path) -> None:
    made = Zygote([], environment=dict(os.environ), prefix=[], log=tmp_path / "log")
    made.ready(60)
    os.killpg(made._process.pid, signal.SIGKILL)
    with pytest.raises(E2EError, match="has ended or does not answer"):
        spawned(made, tmp_path)
    made.close()
    made.close()


def test_closing_a_zygote_ends_its_workers(tmp_path: Path) -> None:
    made = Zygote([], environment=dict(os.environ), prefix=[], log=tmp_path / "log")
    worker = spawned(made, tmp_path)
    assert Path(f"/proc/{worker.pid}").exists()
    made.close()
    end = time.monotonic() + 2
    while _is_running(worker.pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _is_running(worker.pid)
    worker._channel.close()


def _is_running(pid: int) -> bool:
    """A zombie whose new parent has not looked yet is not running."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_modules_in_the_working_folder_do_not_reach_a_zygote(tmp_path: Path) -> None:
    """`-P`: a user's own folder called `e2e` or `json` must not be imported."""
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')")
    code = (
        "import os, sys; from pathlib import Path; from e2e.processes import Zygote;"
        "z = Zygote([], environment=dict(os.environ), prefix=[], log=Path('log')); print(z.ready(60)); z.close()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
