"""The part of HTTP/1.1 that a JSON gateway uses: one request, then one answer or one stream.

Blocking and asynchronous code share it: `exchange` and `feed` are coroutines; parsing is pure.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Protocol

from incumbent import clock
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.pool import Connection, Ended

_HEAD_MAX: Final = 65_536
_HEX_DIGITS: Final = re.compile(rb"[0-9a-fA-F]+(?=[ \t]*(?:;|\Z))")

_now = clock.now


class Stream(Connection, Protocol):
    """A byte stream, blocking (`wire.BlockingWire`) or asynchronous (`aiowire.AsyncStream`).

    `used`: when the present (or last) exchange began.
    """

    used: float

    def send(self, request: bytes, until: float) -> None:
        """Send the whole request. Raises Broken."""

    async def more(self, until: float) -> bytes:
        """The next bytes. Raises Broken, also at the end of the connection."""

    def hang_up(self) -> None:
        """Wake the waiting thread or task, which then closes the connection."""


class Garbled(Exception):
    """The received bytes are not a valid answer of such a server."""


def encode(
    method: str, path: str, host: object, token: str, body: bytes, headers: str = ""
) -> bytes:
    """The bytes of a request. `headers`: more of them, each with its line's end."""
    first = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n"
    auth = f"Authorization: {token}\r\n" if token else ""
    return f"{first}{auth}{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def exchange(stream: Stream, request: bytes, until: float) -> Reading:
    """Send a request; return its answer. Raises Broken, Garbled. Any exception closes `stream`."""
    reading = Reading()
    try:
        begin(stream, request, until)
        while not reading.done:
            await feed(reading, stream, until)
    except BaseException:
        # Whatever it was, the rest of the answer may still come, and would be the next request's.
        stream.close()
        raise
    return reading


def begin(stream: Stream, request: bytes, until: float) -> None:
    """Send a request. Raises Broken."""
    # Before the send, which takes it for the present instant.
    stream.used = _now()
    stream.send(request, until)


async def feed(reading: Reading, stream: Stream, until: float) -> None:
    """Read more of an answer. Raises Broken, Garbled."""
    try:
        data = await stream.more(until)
    except Ended:
        # An answer without a length ends with its connection; any other one was cut off.
        if not reading.end():
            raise
    else:
        reading.feed(data)


class Reading:
    """An answer being read. `done`: it is complete; `last`: the connection ends after it."""

    __slots__ = ("_chunked", "_left", "_raw", "body", "done", "head", "last", "status")

    def __init__(self) -> None:
        self.status = 0
        self.head = b""
        self.body = b""
        self.done = False
        self.last = False
        self._raw = b""
        self._left = 0
        self._chunked = False

    def feed(self, data: bytes) -> None:
        """Parse more bytes. Raises Garbled."""
        self._raw += data
        if not self.status and not self._begin():
            return
        if self._chunked:
            self._read_chunks()
        else:
            self.body += self._raw
            self._raw = b""
            self.done = len(self.body) >= self._left >= 0
            # The rest would be read as the answer to the next request.
            if self.done and len(self.body) > self._left:
                raise Garbled("more came than was announced")

    def end(self) -> bool:
        """At the end of the connection: whether the answer is complete, as one without a length."""
        self.done = self.last = self.status > 0 and not self._chunked and self._left < 0
        return self.done

    def _begin(self) -> bool:
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            if len(head) > _HEAD_MAX:
                raise Garbled("its header never ends")
            return False
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise Garbled("it does not speak HTTP")
        self.status, self.head, self._raw = int(head[9:12]), head.lower(), rest
        length, coding = self.header(b"content-length"), self.header(b"transfer-encoding")
        if (length and coding) or self.head.count(b"\r\ncontent-length:") > 1:
            # RFC 9112, 6.3: another answer may be smuggled behind this one.
            raise Garbled("it says its length in two ways")
        if length and not length.isdigit():
            raise Garbled("its length cannot be read")
        self._chunked = b"chunked" in coding
        # -1: as much as comes until the connection ends.
        self._left = int(length) if length else -1
        self.last = self.header(b"connection") == b"close" or head.startswith(b"HTTP/1.0")
        return True

    def header(self, name: bytes) -> bytes:
        """The value of a header in lower case; empty if there is none."""
        _, found, rest = self.head.partition(b"\r\n" + name + b":")
        return rest.partition(b"\r\n")[0].strip() if found else b""

    def _read_chunks(self) -> None:
        while not self.done:
            size, found, rest = self._raw.partition(b"\r\n")
            if not found:
                return
            digits = _HEX_DIGITS.match(size)
            if digits is None:
                raise Garbled("its chunks cannot be read")
            count = int(digits[0], 16)
            if count == 0:
                self._read_trailers(rest)
                return
            # The end of its line may not have come yet, or only half of it.
            if rest[count : count + 2] not in (b"\r\n", b"\r", b""):
                raise Garbled("a chunk is longer than was announced")
            if len(rest) < count + 2:
                return
            self.body += rest[:count]
            self._raw = rest[count + 2 :]

    def _read_trailers(self, rest: bytes) -> None:
        """Read up to the empty line: unread trailers would be read as the next answer."""
        _, found, more = (b"\r\n" + rest).partition(b"\r\n\r\n")
        self.done = bool(found)
        if more:
            raise Garbled("more came than was announced")

    def lines(self) -> list[dict[str, Any]]:
        """The complete messages of a stream since the last call."""
        *whole, self.body = self.body.split(b"\n")
        return [parse(line) for line in whole if line.strip()]


def parse(body: bytes) -> dict[str, Any]:
    """Parse one message. Raises Garbled."""
    try:
        found = json.loads(body.decode())
    except ValueError as error:
        raise_if_from_signal(error)
        found = None
    if not isinstance(found, dict):
        raise Garbled("it does not answer in JSON")
    return found
