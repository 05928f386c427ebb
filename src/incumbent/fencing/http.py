"""The token in HTTP requests: a client's header, and a server that answers an old one with 409."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple, TypeAlias

from incumbent.errors import ConfigError, LeaseLost
from incumbent.fencing.guards import Fenced, Token, resource_of, token_of
from incumbent.fencing.sql import create_table, with_token

_HEADER: Final = "Fencing-Token"
_RESOURCE: Final = "Fencing-Resource"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_WAIT: Final = 10.0
"""Seconds to wait for another process that has the file of tokens locked."""

_Body: TypeAlias = Iterable[bytes]
_WSGI: TypeAlias = Callable[[dict[str, Any], Any], _Body]
_ASGI: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]


def headers(lease: Fenced, *, resource: str | None = None) -> dict[str, str]:
    """The headers for a request that writes: the token, and the resource in ASCII.

    Raises LeaseLost if the lease is not proved, and ConfigError.
    """
    from urllib.parse import quote

    lease.check()
    return {_HEADER: str(token_of(lease)), _RESOURCE: quote(resource_of(lease, resource))}


class _HttpRefusal(NamedTuple):
    status: str
    text: str


class _TokenGuard:
    """Compares the tokens of requests; several processes of one host share its file."""

    def __init__(self, path: str, resource: str | None) -> None:
        self._path = path
        self._resource = resource
        with closing(self._open()) as tokens:
            tokens.execute("BEGIN IMMEDIATE")
            if not tokens.execute("PRAGMA table_info(incumbent_fencing)").fetchone():
                create_table(tokens)
            tokens.execute("COMMIT")

    def answer(self, method: str, sent: Mapping[str, str]) -> Token | _HttpRefusal | None:
        """Compare a request's token; returns the token, a refusal, or None if it writes nothing."""
        if method in _SAFE:
            return None
        if _HEADER not in sent:
            return _HttpRefusal("428 Precondition Required", f"a write here needs {_HEADER}")
        try:
            token = _token_of(sent, self._resource)
        except ValueError:
            return _HttpRefusal("400 Bad Request", f"{_HEADER} or {_RESOURCE} cannot be read")
        try:
            with closing(self._open()) as tokens:
                tokens.execute("BEGIN IMMEDIATE")
                with_token(token, tokens)
                tokens.execute("COMMIT")
        except LeaseLost as stale:
            return _HttpRefusal("409 Conflict", str(stale))
        return token

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_WAIT, isolation_level=None)


def _token_of(sent: Mapping[str, str], resource: str | None) -> Token:
    from urllib.parse import unquote

    text, name = sent[_HEADER], resource or unquote(sent.get(_RESOURCE, ""), errors="strict")
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ConfigError(f"{text!r} is no token", name=_HEADER)
    token = Token(name, int(text))
    resource_of(token, None)
    token_of(token)
    return token


class FencedWSGI:
    """WSGI middleware: it answers 409 to a write whose token is older than one seen before.

    `tokens` is the path of a file for the largest tokens, which the processes of one host share.
    `resource` is the name of the guarded resource; by default the client sends it. GET, HEAD,
    OPTIONS and TRACE pass; a write without a token gets 428, one with an unreadable token 400.

    It compares tokens when a request arrives. A request that passed may still write after a later
    holder's. If that matters, compare again in the write's own transaction: the application finds
    a `Token` in `environ["incumbent.token"]` for `with_token`.
    """

    def __init__(self, app: _WSGI, tokens: str, *, resource: str | None = None) -> None:
        self._app = app
        self._guard = _TokenGuard(tokens, resource)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> _Body:
        """Handle one request."""
        keys = ((name, f"HTTP_{name.upper().replace('-', '_')}") for name in (_HEADER, _RESOURCE))
        sent = {name: environ[key] for name, key in keys if key in environ}
        answer = self._guard.answer(environ["REQUEST_METHOD"], sent)
        if isinstance(answer, _HttpRefusal):
            start_response(answer.status, [("Content-Type", "text/plain; charset=utf-8")])
            return [answer.text.encode()]
        return self._app({**environ, "incumbent.token": answer}, start_response)


class FencedASGI:
    """ASGI middleware: see `FencedWSGI`; the `Token` is in `scope["state"]["incumbent.token"]`.

    It needs asyncio: it reads its file in a thread.
    """

    def __init__(self, app: _ASGI, tokens: str, *, resource: str | None = None) -> None:
        self._app = app
        self._guard = _TokenGuard(tokens, resource)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request; connections of another kind pass unchecked."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrived: dict[bytes, str] = {}
        for key, value in scope["headers"]:
            # As WSGI servers do: a request with two tokens has none that can be read.
            before = [arrived[key]] if key in arrived else []
            arrived[key] = ",".join([*before, value.decode("latin-1")])
        keys = ((name, name.lower().encode()) for name in (_HEADER, _RESOURCE))
        sent = {name: arrived[key] for name, key in keys if key in arrived}
        # In a thread: another process may have the file locked for seconds.
        answer = await asyncio.to_thread(self._guard.answer, scope["method"], sent)
        if isinstance(answer, _HttpRefusal):
            await _refuse(send, answer)
            return
        state = {**scope.get("state", {}), "incumbent.token": answer}
        await self._app({**scope, "state": state}, receive, send)


async def _refuse(send: Any, refusal: _HttpRefusal) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": int(refusal.status[:3]),
            "headers": [(b"content-type", b"text/plain; charset=utf-8")],
        }
    )
    await send({"type": "http.response.body", "body": refusal.text.encode()})
