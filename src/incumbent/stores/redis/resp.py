"""Requests and scripts as the bytes that go over the wire (RESP 2)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from hashlib import sha1
from math import ceil
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import hiredis

from incumbent.stores.redis.records import FIELDS

T = TypeVar("T")

PACKED_KEYS: Final = 1024
"""Keys for which packed bytes are kept, to be sent again."""
ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"
"""Sent before a request for a key that is being moved to the node of a cluster."""

Part: TypeAlias = "bytes | str | int"
Folder: TypeAlias = "str | os.PathLike[str]"


class RequestBatch(NamedTuple):
    """Requests that are sent together, and the number of their answers.

    `repeats`: all of them may be sent again if the server did not know a script.
    """

    payload: bytes
    answers: int
    repeats: bool = True


RespProgram: TypeAlias = Generator[RequestBatch, list[Any], T]
"""An operation of several steps on one connection; the transport sends, the program decides."""


def each_step(
    program: RespProgram[T], ask: Callable[[RequestBatch], RespProgram[list[Any]]]
) -> RespProgram[T]:
    """The same program, where `ask` brings the answers of each step."""
    answers: Any = None
    try:
        while True:
            answers = yield from ask(program.send(answers))
    except StopIteration as end:
        result: T = end.value
        return result


def pack(*parts: Part) -> bytes:
    """The bytes of one request."""
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def pack_arguments(*parts: Part) -> bytes:
    """The bytes of the last arguments of a request; see Script.open_call."""
    return pack(*parts).partition(b"\r\n")[2]


def milliseconds(seconds: float) -> int:
    """`seconds` in ms, rounded up so that the server never forgets earlier than was asked."""
    return max(1, ceil(seconds * 1000))


_FOLDER: Final = os.path.dirname(__file__)  # noqa: PTH120
_INCLUDE: Final = re.compile(rb"^-- INCLUDE ([\w:]+)$", re.MULTILINE)
_COMMENT: Final = re.compile(rb"^ *(?:--.*)?\n", re.MULTILINE)
_FIELD: Final = re.compile(rb"\bFIELD\.(\w+)")


def _read(folder: Folder, name: str) -> bytes:
    """The text of `file` before its parts; of `file:part`, the text after `-- PART part`."""
    path, _, part = name.partition(":")
    # Not by pathlib, which costs start-up time.
    with open(f"{folder}/{path}.lua", "rb") as file:  # noqa: PTH123
        text = file.read()
    if part:
        text = text.partition(b"\n-- PART %b\n" % part.encode())[2]
    text = text.partition(b"\n-- PART ")[0]
    return _INCLUDE.sub(lambda found: _read(folder, found[1].decode()), text)


_texts: Final[dict[bytes, bytes]] = {}
"""The texts of all scripts, by the SHA-1 that is their name on servers."""


class Script:
    """A Lua script as it is sent: no comment lines, each `FIELD.x` replaced by its stored name."""

    def __init__(
        self, name: str, folder: Folder = _FOLDER, fields: Mapping[str, bytes] = FIELDS
    ) -> None:
        text = _COMMENT.sub(b"", _read(folder, name))
        self.text: bytes = _FIELD.sub(lambda found: b"'%b'" % fields[found[1].decode()], text)
        # The server's name for a script, not a matter of security.
        self.sha: bytes = sha1(self.text, usedforsecurity=False).hexdigest().encode()
        _texts[self.sha] = self.text

    def call(self, keys: int, *parts: Part) -> bytes:
        """One request that runs the script; the first `keys` of `parts` are keys."""
        return pack(b"EVALSHA", self.sha, keys, *parts)

    def open_call(self, keys: Sequence[Part], more: int) -> bytes:
        """The beginning of a request that gets `more` arguments: see pack_arguments."""
        whole = pack(b"EVALSHA", self.sha, len(keys), *keys)
        return b"*%d\r\n" % (3 + len(keys) + more) + whole.partition(b"\r\n")[2]


SCRIPTS: Final = {
    name: Script(name) for name in ("take", "renew", "renew:shared", "give", "put", "take:checking")
}


def as_eval(payload: bytes) -> bytes:
    """The same requests with the texts of the scripts in place of their names."""
    # Requests are parsed, not searched: a user's metadata may be any bytes, also those of a call.
    reader, packed = hiredis.Reader(), list[bytes]()
    reader.feed(payload)
    while (parts := reader.gets()) is not False:
        if parts[0] == b"EVALSHA":
            parts[:2] = b"EVAL", _texts[parts[1]]
        packed.append(pack(*parts))
    return b"".join(packed)


def is_forgotten(answer: Any) -> bool:
    """Whether the server does not know the script (any more), so that its text must be sent."""
    return type(answer) is hiredis.ReplyError and str(answer).startswith("NOSCRIPT")
