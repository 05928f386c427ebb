"""What a client sent on one connection, cut into requests: RESP, HTTP/1.1, PostgreSQL."""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator
from hashlib import sha1
from struct import unpack_from

import hiredis

__all__ = ["cut"]

_LONG = 400
"""Characters from which a script or a schema is named by its digest instead of written out."""


def cut(engine: str, stream: bytes) -> Iterator[str]:
    """The requests of a stream; one that is not complete is left out."""
    if engine in ("etcd", "kubernetes"):
        return _http(stream)
    return _postgresql(stream) if engine == "postgresql" else _resp(stream)


def _text(body: bytes) -> str:
    """A change of a long text is a change of one word in a recording."""
    return f"<text {sha1(body).hexdigest()[:10]}>"  # as Redis names its scripts


def _said(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# -- Redis -----------------------------------------------------------------------------------


def _resp(stream: bytes) -> Iterator[str]:
    reader = hiredis.Reader()
    reader.feed(stream)
    while (words := reader.gets()) is not False:
        name, *rest = words
        if name == b"SCRIPT":
            continue  # whether a script has to be loaded depends on who was there before
        said = [_said(name), *map(_said, rest)]
        if name == b"EVAL":
            said[:2] = ["EVALSHA", _text(rest[0])]
        elif name == b"EVALSHA":
            said[1] = f"<text {said[1][:10]}>"
        yield " ".join(word if word.isprintable() and word else repr(word) for word in said)


# -- etcd and Kubernetes ----------------------------------------------------------------------

_BASE64 = {"key", "value", "range_end", "prefix"}
_NOT_COMPARED = {"Host", "Content-Length"}


def _http(stream: bytes) -> Iterator[str]:
    while b"\r\n\r\n" in stream:
        head, _, stream = stream.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("Content-Length", 0))
        body, stream = stream[:length].decode(), stream[length:]
        kept = [f"{name}: {value}" for name, value in headers.items() if name not in _NOT_COMPARED]
        yield " ".join([first, *kept, *_documents(body)])


def _documents(body: str) -> Iterator[str]:
    """A watch sends several."""
    while body:
        found, end = json.JSONDecoder().raw_decode(body)
        yield json.dumps(_readable(found), ensure_ascii=False)
        body = body[end:].lstrip()


def _readable(it: object) -> object:
    if isinstance(it, list):
        return [_readable(one) for one in it]
    if isinstance(it, dict):
        return {
            name: _decoded(value)
            if name in _BASE64 and isinstance(value, str)
            else _readable(value)
            for name, value in it.items()
        }
    return it


def _decoded(value: str) -> str:
    try:
        return _said(b64decode(value, validate=True))
    except NotBase64:
        return value


# -- PostgreSQL ------------------------------------------------------------------------------


def _postgresql(stream: bytes) -> Iterator[str]:
    """Messages up to the one that has the server answer are one request."""
    parts: list[str] = []
    prepared: dict[bytes, str] = {}
    at = 0
    while at < len(stream):
        kind = b"" if stream[at] == 0 else stream[at : at + 1]  # the first message has no letter
        at += len(kind)
        if at + 4 > len(stream):
            break
        (length,) = unpack_from("!I", stream, at)
        parts.append(_message(kind, stream[at + 4 : at + length], prepared))
        at += length
        if kind in {b"", b"S", b"Q", b"p"}:
            yield " ".join(parts)
            parts = []


_KINDS = {b"D": "Describe", b"E": "Execute", b"S": "Sync", b"H": "Flush", b"p": "Password"}


def _message(kind: bytes, body: bytes, prepared: dict[bytes, str]) -> str:
    if kind == b"":
        return f"Startup {_said(body[4:]).replace(chr(0), ' ').strip()}"
    if kind == b"Q":
        return f"Query {_statement(body[:-1])}"
    if kind == b"P":
        name, statement, _ = body.split(b"\0", 2)
        prepared[name] = _statement(statement)
        return f"Parse {prepared[name]}"
    if kind == b"B":
        _, name, rest = body.split(b"\0", 2)
        return f"Bind {prepared.get(name, '?')} ({', '.join(_parameters(rest))})"
    return _KINDS.get(kind, f"Message-{_said(kind)}")


def _statement(raw: bytes) -> str:
    return _text(raw) if len(raw) > _LONG else " ".join(_said(raw).split())


def _parameters(rest: bytes) -> Iterator[str]:
    (formats,) = unpack_from("!H", rest)
    at = 2 + 2 * formats
    (count,) = unpack_from("!H", rest, at)
    at += 2
    for _ in range(count):
        (length,) = unpack_from("!i", rest, at)
        at += 4
        yield "NULL" if length < 0 else repr(_said(rest[at : at + length]))
        at += max(0, length)
