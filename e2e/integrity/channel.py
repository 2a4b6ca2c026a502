"""Length-limited JSON messages over a socket; nothing is ever unpickled.

Wire format: 4 bytes, big endian, of length, then that many bytes of UTF-8 JSON (one object).
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

from e2e.errors import E2EError

MAX_MESSAGE_BYTES = 16 * 2**20
"""No honest message comes near; a longer one ends its worker."""
_HEADER = struct.Struct("!I")


class ChannelClosed(E2EError):
    """The other side is gone."""


class ChannelTimeout(E2EError):
    """Nothing complete arrived in time."""


class ChannelGarbage(E2EError):
    """What arrived is not a message."""


class Channel:
    """One end of a connection that carries JSON objects."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, message: dict[str, Any], timeout_s: float | None = None) -> None:
        """Send one object.

        Raises:
            ChannelClosed: the other side is gone.
            ChannelTimeout: the other side did not read it in time; the channel is of no use any more.
            ValueError: it holds a number that is not finite.
        """
        body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
        self._sock.settimeout(timeout_s)  # else a limit left from receiving would hold
        try:
            self._sock.sendall(_HEADER.pack(len(body)) + body)
        except TimeoutError as error:
            raise ChannelTimeout("a message was not read in time") from error
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed("the other side closed the channel") from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next object.

        Raises:
            ChannelClosed: the other side is gone.
            ChannelTimeout: `timeout_s` passed first.
            ChannelGarbage: too long, not JSON, or not an object.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = _HEADER.unpack(self._exactly(_HEADER.size, deadline))
        if length > MAX_MESSAGE_BYTES:
            raise ChannelGarbage(f"a message of {length} bytes was announced; the limit is {MAX_MESSAGE_BYTES}")
        try:
            message = json.loads(self._exactly(length, deadline), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise ChannelGarbage("a message is not JSON") from error
        if not isinstance(message, dict):
            raise ChannelGarbage("a message is not an object")
        found: dict[str, Any] = _sayable(message)
        return found

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        parts: list[bytes] = []
        while size:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ChannelTimeout("no answer in time")
                self._sock.settimeout(left)
            else:
                self._sock.settimeout(None)
            try:
                part = self._sock.recv(min(size, 2**20))
            except TimeoutError as error:
                raise ChannelTimeout("no answer in time") from error
            except ConnectionResetError as error:
                raise ChannelClosed("the other side closed the channel") from error
            if not part:
                raise ChannelClosed("the other side closed the channel")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _sayable(value: Any) -> Any:
    """The same with every text fit for UTF-8: JSON can spell half a character, which no file can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_sayable(item) for item in value]
    if isinstance(value, dict):
        return {_sayable(key): _sayable(item) for key, item in value.items()}
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
