"""Parent side of zygotes and workers: start, ask, stamp, end. The only place where processes are made."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import ValidationError

from e2e.errors import E2EError, EnvironmentFault
from e2e.integrity.channel import Channel, ChannelClosed, ChannelGarbage, ChannelTimeout
from e2e.integrity.isolation import die_with_parent
from e2e.integrity.quiescence import restless_s
from e2e.schema.answers import checked
from e2e.units import Seconds

FaultKind = Literal["raised", "crashed", "exited", "timed_out", "garbage"]
WARM_S = 180.0
"""A first compilation imports for seconds, on a cold disk for many; it is given as long as the imports."""
SEND_S = 30.0
"""A request fits the socket's buffer, or nearly: a worker that does not read it in this time is stopped."""


class WorkerFault(E2EError):
    """A worker did not do what it was asked: it raised, died, hung, or spoke nonsense."""

    def __init__(self, message: str, *, kind: FaultKind, code: str | None = None, line: int | None = None) -> None:
        super().__init__(message, code=code or kind)
        self.kind = kind
        self.reason = code
        """The ReasonCode a worker named for it, if any."""
        self.line = line


class Zygote:
    """One exec'ed process with the heavy imports done; forks workers in milliseconds."""

    def __init__(
        self, modules: Sequence[str], *, environment: Mapping[str, str], prefix: Sequence[str], log: Path
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self.log = log
        """What it and its imports print."""
        with log.open("ab") as stream, theirs:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-P", "-m", "e2e.zygote", str(theirs.fileno()), *modules],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._ready: dict[str, Any] | None = None
        self._is_warming = False
        self.threads: list[str] = []
        """Names of its threads: more than one is a risk at every fork, which the time limits contain."""

    def ready(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the imports; says how many threads it has and that no device was touched.

        Raises:
            EnvironmentFault: the imports failed or did not end in time.
        """
        if self._ready is None:
            try:
                self._ready = self._receive(timeout_s)
            except (TimeoutError, ChannelClosed) as error:
                self.close()
                tail = self.log.read_text(errors="replace")[-2000:].strip()
                raise EnvironmentFault(
                    f"could not import torch and transformers in a worker within {timeout_s:.0f} s; "
                    f"`e2e doctor` looks closer\n{tail}"
                ) from error
            self._know(self._ready)
        return self._ready

    def _know(self, state: dict[str, Any]) -> None:
        if state["cuda_initialized"]:
            raise E2EError("a zygote initialised CUDA, which no fork survives: an imported package did that")
        self.threads = state["threads"]

    def warm(self) -> None:
        """Let it warm torch's compiler, as its environment says how, for the workers still to come; does not wait."""
        self._settle()
        with contextlib.suppress(OSError):  # whoever needs it next finds out that it ended
            self._control.send(json.dumps({"do": "warm"}).encode())
            self._is_warming = True

    def _settle(self) -> None:
        """Until it listens again.

        Raises:
            ChannelClosed: it has ended, or did not come back in time.
        """
        if not self._is_warming:
            return
        self._is_warming = False
        try:
            self._know(self._receive(WARM_S))
        except TimeoutError as error:
            self.close()
            raise ChannelClosed("the zygote did not come back") from error

    def spawn(self, request: Mapping[str, Any], *, log: Path) -> Worker:
        """A fresh worker process; its stdout and stderr go to `log`."""
        self.ready(180.0)
        ours, theirs = socket.socketpair()
        with log.open("ab") as stream, theirs:
            fds = [theirs.fileno(), stream.fileno(), stream.fileno()]
            try:
                self._settle()
                socket.send_fds(self._control, [json.dumps({"do": "spawn", **request}).encode()], fds)
                pid = int(self._receive(30.0)["pid"])
            except (OSError, ChannelClosed) as error:
                ours.close()
                raise E2EError("the process from which workers are forked has ended or does not answer") from error
        return Worker(self, pid, Channel(ours), log)

    def kill(self, pid: int) -> int | None:
        """Kill a worker and what it left in its session; returns its exit status."""
        return self._ask({"do": "kill", "pid": pid})

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Exit status of a worker that ended (negative: killed by that signal), or None."""
        return self._ask({"do": "wait", "pid": pid, "timeout_s": timeout_s})

    def used_s(self, pid: int) -> Seconds | None:
        """Processor time so far of a worker and what it left running; None if the zygote does not say."""
        try:
            self._settle()
            self._control.send(json.dumps({"do": "used", "pid": pid}).encode())
            return float(self._receive(30.0)["used_s"])
        except (OSError, ChannelClosed):
            return None

    def close(self) -> None:
        """End it and everything it forked."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, request: Mapping[str, Any]) -> int | None:
        try:
            self._settle()
            self._control.send(json.dumps(request).encode())
            status = self._receive(30.0)["status"]
        except (OSError, ChannelClosed):
            return None
        return None if status is None else int(status)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        self._control.settimeout(timeout_s)
        try:
            data = self._control.recv(65536)
        except ConnectionResetError:
            data = b""
        self._control.settimeout(None)
        if not data:
            raise ChannelClosed("the zygote ended")
        message: dict[str, Any] = json.loads(data)
        return message


class Worker:
    """One forked process, asked one thing at a time."""

    def __init__(self, zygote: Zygote, pid: int, channel: Channel, log: Path) -> None:
        self._zygote = zygote
        self._channel = channel
        self.pid = pid
        self.log = log
        self.alive = True
        self.clean = True
        """Whether it never loads a candidate."""
        self._asked: deque[str] = deque()
        """Numbers of requests without an answer, drawn at random: a message of the candidate's own has none."""
        self.opening: dict[str, Any] = {}
        """The first request, which runs no candidate."""
        self.facts: dict[str, Any] = {}
        """What it said when it opened the workload."""

    def call(self, do: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """Ask for one thing and wait for the answer.

        Raises:
            WorkerFault: it raised, died, spoke nonsense, or did not answer in time (then it is killed).
        """
        self.send(do, **fields)
        return self.answer(do, timeout_s=timeout_s)

    def send(self, do: str, **fields: Any) -> None:
        """Ask without waiting."""
        try:
            self._asked.append(secrets.token_hex(8))
            self._channel.send({"do": do, "id": self._asked[-1], **fields}, timeout_s=SEND_S)
        except ChannelTimeout as error:
            self.kill()
            raise WorkerFault(f"it did not read the request {do!r} within {SEND_S:.0f} s", kind="timed_out") from error
        except ChannelClosed:
            self._died(do)

    def answer(self, do: str, *, timeout_s: float) -> dict[str, Any]:
        """The answer to what was sent."""
        reply = self._next(do, timeout_s)
        if "mark" in reply:
            raise self._nonsense(do, "it marks a segment that was not asked for")
        return self._concluded(do, reply)

    def stamps(self, do: str, *, marks: int, timeout_s: float, **fields: Any) -> tuple[list[int], dict[str, Any]]:
        """Ask for a timed segment; nanoseconds of the parent's clock at every mark that comes back.

        The worker sends one `mark` per device sync and then its answer. The clock is read here and nowhere else.
        """
        end = time.monotonic() + timeout_s
        self.send(do, **fields)
        stamps: list[int] = []
        while True:
            reply = self._next(do, max(0.0, end - time.monotonic()))
            now = time.perf_counter_ns()
            if "mark" in reply:
                stamps.append(now)
                continue
            reply = self._concluded(do, reply)
            if len(stamps) != marks:
                raise self._nonsense(do, f"it sent {len(stamps)} marks instead of {marks}")
            return stamps, reply

    def _next(self, do: str, timeout_s: float) -> dict[str, Any]:
        """The next message, which belongs to the oldest open request."""
        try:
            reply = self._channel.receive(timeout_s)
        except ChannelTimeout as error:
            self.kill()
            raise WorkerFault(f"no answer to {do!r} within {timeout_s:.0f} s", kind="timed_out") from error
        except ChannelGarbage as error:
            raise self._nonsense(do, error.message) from error
        except ChannelClosed:
            self._died(do)
        if reply.pop("id", None) != self._asked[0]:
            raise self._nonsense(do, "it does not carry that request's number")
        return reply

    def _concluded(self, do: str, reply: dict[str, Any]) -> dict[str, Any]:
        self._asked.popleft()
        problem = reply.get("fault")
        if isinstance(problem, dict):
            code, line = problem.get("code"), problem.get("line")
            raise WorkerFault(
                str(problem.get("message", "unknown error"))[:4000],
                kind="raised",
                code=code if isinstance(code, str) else None,
                line=line if isinstance(line, int) else None,
            )
        try:
            return checked(do, reply)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise self._nonsense(do, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    def _nonsense(self, do: str, why: str) -> WorkerFault:
        self.kill()
        return WorkerFault(f"the worker's answer to {do!r} is not one: {why}", kind="garbage")

    def restless_s(self) -> Seconds | None:
        """Between two requests: None if it rests, else what it uses of every tenth of a second."""
        return restless_s(lambda: self._zygote.used_s(self.pid))

    def close(self) -> None:
        """End it without blame."""
        if self.alive:
            self.kill()

    def kill(self) -> int | None:
        """Kill it now; returns its exit status."""
        self.alive = False
        status = self._zygote.kill(self.pid)
        self._channel.close()
        return status

    def output(self, limit: int = 2000) -> str:
        """The end of what it printed."""
        try:
            with self.log.open("rb") as file:  # a candidate may have printed gigabytes
                file.seek(max(0, self.log.stat().st_size - 4 * limit))
                return file.read(4 * limit).decode("utf-8", "replace")[-limit:].strip()
        except OSError:
            return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _died(self, do: str) -> Any:
        status = self._zygote.wait(self.pid, 5.0)
        self.kill()
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            raise WorkerFault(f"the process was killed by {name} during {do!r}", kind="crashed")
        raise WorkerFault(f"the process ended with status {status} during {do!r}", kind="exited")
