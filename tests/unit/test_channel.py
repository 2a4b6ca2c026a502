"""Whatever bytes a worker sends, the parent reads an object or gets one of three errors, in bounded time."""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.integrity.channel import (
    MAX_MESSAGE_BYTES,
    Channel,
    ChannelClosed,
    ChannelGarbage,
    ChannelTimeout,
)

SHORT_S = 0.05

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


class Pair:
    """The parent's channel, and the bare socket of a worker that may send anything."""

    def __init__(self) -> None:
        ours, self.other = socket.socketpair()
        self.channel = Channel(ours)

    def say(self, raw: bytes) -> None:
        self.other.sendall(raw)

    def hang_up(self) -> None:
        self.other.close()

    def close(self) -> None:
        self.channel.close()
        self.other.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.closing(Pair()) as made:
        yield made


def framed(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


# ---- What works


@given(message=st.dictionaries(st.text(max_size=8), json_values, max_size=4))
def test_what_is_sent_is_what_is_received(message: dict[str, Any]) -> None:
    with contextlib.closing(Pair()) as pair:
        Channel(pair.other).send(message)
        assert pair.channel.receive(SHORT_S) == message


def test_messages_stay_apart_and_in_order(pair: Pair) -> None:
    pair.say(framed(b'{"n":1}') + framed(b'{"n":2}'))
    assert [pair.channel.receive(SHORT_S), pair.channel.receive(SHORT_S)] == [{"n": 1}, {"n": 2}]


def test_a_message_may_arrive_in_pieces(pair: Pair) -> None:
    raw = framed(json.dumps({"text": "x" * 50}).encode())

    def dribble() -> None:
        for place in range(len(raw)):
            pair.other.sendall(raw[place : place + 1])

    sender = threading.Thread(target=dribble)
    sender.start()
    assert pair.channel.receive(5.0) == {"text": "x" * 50}
    sender.join()


def test_a_message_larger_than_the_sockets_buffer_arrives(pair: Pair) -> None:
    big = {"text": "y" * 3_000_000}
    sender = threading.Thread(target=Channel(pair.other).send, args=(big,))
    sender.start()
    assert pair.channel.receive(20.0) == big
    sender.join()


# ---- What does not


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("!I", MAX_MESSAGE_BYTES + 1),
        struct.pack("!I", 2**32 - 1) + b"x" * 100,
        framed(b""),
        framed(b"no json"),
        framed(b'{"a":1'),
        framed(b"\xff\xfe\xff"),
        framed(b'["a list"]'),
        framed(b'"text"'),
        framed(b"17"),
        framed(b"null"),
        framed(b"[" * 200_000),
        framed(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        framed(b'{"a":' + b"1" * 10_000 + b"}"),
        framed(b'{"a":NaN}'),
        framed(b'{"a":-Infinity}'),
        framed(pickle.dumps({"a": 1})),
    ],
    ids=[
        "one byte too long", "far too long", "empty", "no json", "cut short inside", "no text", "a list",
        "a string", "a number", "null", "deep lists", "deep objects", "10,000 digits", "nan", "infinity", "a pickle",
    ],
)  # fmt: skip
def test_anything_but_an_object_is_garbage(pair: Pair, raw: bytes) -> None:
    sender = threading.Thread(target=pair.say, args=(raw,))
    sender.start()
    with pytest.raises(ChannelGarbage):
        pair.channel.receive(5.0)
    sender.join()


def test_the_limit_is_refused_from_the_header_alone(pair: Pair) -> None:
    """The body never comes: waiting for it would give a worker memory and time of the parent."""
    pair.say(struct.pack("!I", MAX_MESSAGE_BYTES + 1))
    started = time.monotonic()
    with pytest.raises(ChannelGarbage, match=str(MAX_MESSAGE_BYTES)):
        pair.channel.receive(10.0)
    assert time.monotonic() - started < 1.0


@pytest.mark.parametrize("sent", [b"", b"\0\0", framed(b'{"a":1}')[:-1]], ids=["nothing", "half a header", "no end"])
def test_a_worker_that_hangs_up_early_is_gone(pair: Pair, sent: bytes) -> None:
    pair.say(sent)
    pair.hang_up()
    with pytest.raises(ChannelClosed):
        pair.channel.receive(5.0)


@pytest.mark.parametrize("sent", [b"", b"\0\0", framed(b'{"a":1}')[:-1]], ids=["nothing", "half a header", "no end"])
def test_a_worker_that_stops_talking_is_out_of_time(pair: Pair, sent: bytes) -> None:
    pair.say(sent)
    started = time.monotonic()
    with pytest.raises(ChannelTimeout):
        pair.channel.receive(SHORT_S)
    assert time.monotonic() - started >= SHORT_S * 0.9


def test_a_worker_that_dribbles_does_not_get_more_time(pair: Pair) -> None:
    """The limit is one for the whole message, not one for every byte."""
    stop = threading.Event()

    def dribble() -> None:
        pair.other.sendall(struct.pack("!I", 1000))
        while not stop.wait(SHORT_S / 5):
            pair.other.sendall(b"x")

    sender = threading.Thread(target=dribble)
    sender.start()
    started = time.monotonic()
    with pytest.raises(ChannelTimeout):
        pair.channel.receive(2 * SHORT_S)
    elapsed = time.monotonic() - started
    stop.set()
    sender.join()
    assert elapsed < 1.0


def test_sending_to_a_worker_that_is_gone_says_so(pair: Pair) -> None:
    pair.hang_up()
    with pytest.raises(ChannelClosed):
        [pair.channel.send({"do": "x"}) for _ in range(3)]


def test_sending_to_a_worker_that_never_reads_ends(pair: Pair) -> None:
    """A stopped process must not hang its parent: the socket's buffer is soon full."""
    with pytest.raises(ChannelTimeout):
        pair.channel.send({"text": "z" * 8_000_000}, timeout_s=SHORT_S)


def test_a_limit_used_for_receiving_is_not_left_for_sending(pair: Pair) -> None:
    """A worker may be slow to read a long message without being taken for a stopped one."""
    with pytest.raises(ChannelTimeout):
        pair.channel.receive(SHORT_S)
    got: list[bytes] = []

    def read_late() -> None:
        time.sleep(4 * SHORT_S)
        while part := pair.other.recv(2**20):
            got.append(part)

    reader = threading.Thread(target=read_late)
    reader.start()
    pair.channel.send({"text": "z" * 3_000_000})
    pair.channel.close()
    reader.join()
    assert sum(map(len, got)) == 4 + len('{"text":""}') + 3_000_000


def test_a_number_that_is_none_is_not_sent(pair: Pair) -> None:
    """NaN is not JSON: it must fail on the side that has it."""
    with pytest.raises(ValueError, match="JSON"):
        pair.channel.send({"error": float("nan")})


# ---- Any bytes at all


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=200) | st.builds(framed, st.binary(max_size=200)))
def test_any_bytes_give_an_object_or_one_of_three_errors(raw: bytes) -> None:
    with contextlib.closing(Pair()) as pair:
        pair.say(raw)
        pair.hang_up()
        while True:
            try:
                message = pair.channel.receive(SHORT_S)
            except (ChannelClosed, ChannelTimeout, ChannelGarbage):
                return
            assert isinstance(message, dict)


@settings(max_examples=100, deadline=None)
@given(body=json_values.map(lambda value: json.dumps(value).encode()))
def test_any_json_gives_an_object_or_garbage(body: bytes) -> None:
    with contextlib.closing(Pair()) as pair:
        pair.say(framed(body))
        expected: Callable[[], Any] = lambda: pair.channel.receive(SHORT_S)  # noqa: E731
        if isinstance(json.loads(body), dict):
            assert expected() == json.loads(body)
        else:
            with pytest.raises(ChannelGarbage):
                expected()


def test_half_a_character_arrives_as_something_that_can_be_stored() -> None:
    body = b'{"fault": {"message": "a\\ud800b", "\\udfff": ["\\ud83d\\ude00", 1]}}'
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("!I", len(body)) + body)
        found = Channel(ours).receive(1.0)
    assert found == {"fault": {"message": "a\\ud800b", "\\udfff": ["\U0001f600", 1]}}
    json.dumps(found, ensure_ascii=False).encode("utf-8")
