"""CHILD: answers the parent's requests, one at a time. Loads torch and, unless it is clean, the candidate.

Nothing it says is believed beyond what the parent stamps or the clean worker verifies.
"""

from __future__ import annotations

import os
import resource
import secrets
import socket
import tempfile
import traceback
from pathlib import Path
from typing import Any

from e2e import outside
from e2e.errors import E2EError
from e2e.integrity.channel import Channel, ChannelClosed
from e2e.requests.holding import Holding
from e2e.requests.judging import Judging
from e2e.requests.timing import Timing

MAX_FILE_BYTES = 8 * 2**30
"""No file that a worker writes comes near; a candidate that prints for ever is stopped here."""


def run(sock: socket.socket, request: dict[str, Any]) -> int:
    """Serve until the parent closes the channel; the exit status of the process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    os.environ.update(request.get("environment", {}))
    tempfile.tempdir = None  # an import in the zygote may have looked for one, and remembered it
    channel = Channel(sock)
    worker = Handlers(channel, clean=bool(request["clean"]))
    while True:
        try:
            message = channel.receive()
        except ChannelClosed:
            return 0
        worker.asked = message.pop("id")
        reply = _answer(worker, message)
        try:
            channel.send({**reply, "id": worker.asked})
        except (TypeError, ValueError) as error:
            fault = {"message": f"an answer that is not JSON: {error}", "code": None, "line": None}
            channel.send({"fault": fault, "id": worker.asked})


def _answer(worker: Handlers, message: dict[str, Any]) -> dict[str, Any]:
    do = message.pop("do")
    try:
        reply: dict[str, Any] = getattr(worker, f"do_{do}")(**message) or {}
        worker.verify(do)
        return reply
    except E2EError as error:
        return {"fault": {"message": error.message, "code": error.code, "line": getattr(error, "line", None)}}
    except MemoryError:
        return {"fault": {"message": "host memory ran out", "code": "out_of_memory"}}
    except Exception as error:  # noqa: BLE001  worker edge: a candidate may raise anything; the parent judges
        if worker.is_clean and (mistake := outside.fault_in(error)) is not None:
            return {"fault": {"message": mistake.message, "code": mistake.code, "line": None}}
        return {"fault": {"message": _describe(error), "code": _code(error), "line": None}}


def _describe(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}:{last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {_said(error).strip()[:1500]}{where}"


def _said(error: BaseException) -> str:
    """Its message; a candidate's own exception may raise even there."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  worker edge, as above
        return "(its message cannot be read)"


def _code(error: BaseException) -> str | None:
    text = _said(error).lower()
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in text or "bad_alloc" in text:
        return "out_of_memory"
    return None


LOOKS = 16
"""Of so many timed segments, after about one the whole process is compared with what it was, which takes about 7 ms of
a core with torch and transformers loaded. The number is chosen, not measured."""


_OWN_SETTINGS = ("arena", "settle")
"""Requests in which e2e itself changes settings: threads, garbage collection."""


class Handlers(Judging, Holding, Timing):
    """One method per request; the state of one worker."""

    def verify(self, do: str) -> None:
        """See Ledger.verify; nothing is timed when a request is done.

        Between segments a look at everything would leave every arm with cold caches: settings are compared after each,
        the rest after a random few.
        """
        if self._ledger is None or do == "stage":
            return
        if do in _OWN_SETTINGS:
            self._ledger.renew()
        self._ledger.verify(f"after {do!r}", is_whole=do != "go" or secrets.randbelow(LOOKS) == 0)
