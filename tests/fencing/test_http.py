"""Requests with a token: what the middleware lets through, and what it answers."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from incumbent.fencing import FencedASGI, FencedWSGI, Token, headers

READ, WRITE = "GET", "PUT"


class Wsgi:
    """Requests to a WSGI application behind the middleware."""

    def __init__(self, tokens: str, resource: str | None = None) -> None:
        self.token: Token | None = None
        self._app = FencedWSGI(self._answer, tokens, resource=resource)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.token = environ["incumbent.token"]
        start_response("200 OK", [])
        return [b"done"]

    def ask(self, method: str, sent: dict[str, str]) -> tuple[int, str]:
        environ: dict[str, str] = {}
        for name, value in sent.items():
            # As wsgiref's server joins the values of one name.
            key = f"HTTP_{name.upper().replace('-', '_')}"
            environ[key] = f"{environ[key]},{value}" if key in environ else value
        statuses: list[str] = []
        body = self._app(
            {"REQUEST_METHOD": method, **environ}, lambda status, _: statuses.append(status)
        )
        return int(statuses[0][:3]), b"".join(body).decode()


class Asgi:
    """The same to an ASGI application."""

    def __init__(self, tokens: str, resource: str | None = None) -> None:
        self.token: Token | None = None
        self._app = FencedASGI(self._answer, tokens, resource=resource)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.token = scope["state"]["incumbent.token"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    def ask(self, method: str, sent: dict[str, str]) -> tuple[int, str]:
        scope = {
            "type": "http",
            "method": method,
            "headers": [(key.lower().encode(), value.encode()) for key, value in sent.items()],
        }
        events: list[dict[str, Any]] = []

        async def send(event: dict[str, Any]) -> None:
            events.append(event)

        asyncio.run(self._app(scope, None, send))
        return events[0]["status"], events[1]["body"].decode()


@pytest.fixture(params=[Wsgi, Asgi])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def server(kind: Any, tmp_path: Path) -> Any:
    return kind(str(tmp_path / "tokens.db"))


def test_an_older_token_is_answered_with_409_and_the_reason(server: Any) -> None:
    assert server.ask(WRITE, headers(Token("orders", 7))) == (200, "done")
    status, text = server.ask(WRITE, headers(Token("orders", 6)))
    assert status == 409
    assert "token 6 may not write to 'orders' any more: token 7 was here" in text
    assert server.ask(WRITE, headers(Token("orders", 7))) == (200, "done")


def test_the_application_finds_the_token_for_its_own_transaction(server: Any) -> None:
    server.ask(WRITE, headers(Token("Müller/orders", 7)))
    assert server.token == Token("Müller/orders", 7)


def test_what_only_reads_needs_no_token(server: Any) -> None:
    assert server.ask(READ, {}) == (200, "done")
    assert server.token is None


def test_a_write_without_a_token_is_refused(server: Any) -> None:
    assert server.ask(WRITE, {})[0] == 428


@pytest.mark.parametrize(
    "sent",
    [
        {"Fencing-Token": "-1", "Fencing-Resource": "orders"},
        {"Fencing-Token": "9" * 20, "Fencing-Resource": "orders"},
        {"Fencing-Token": "7; drop", "Fencing-Resource": "orders"},
        {"Fencing-Token": "7"},
        {"Fencing-Token": "7", "Fencing-Resource": "%ff"},
    ],
)
def test_a_token_that_cannot_be_read_is_refused(server: Any, sent: dict[str, str]) -> None:
    assert server.ask(WRITE, sent)[0] == 400


def test_a_request_with_two_tokens_has_none_that_can_be_read(kind: Any, tmp_path: Path) -> None:
    server = kind(str(tmp_path / "tokens.db"), "orders")
    assert server.ask(WRITE, {"Fencing-Token": "9", "fencing-token": "7"})[0] == 400


def test_a_server_may_say_itself_what_it_guards(kind: Any, tmp_path: Path) -> None:
    server = kind(str(tmp_path / "tokens.db"), "orders")
    assert server.ask(WRITE, headers(Token("orders", 7)))[0] == 200
    assert server.ask(WRITE, headers(Token("orders", 6), resource="elsewhere"))[0] == 409


def test_the_processes_of_a_host_share_what_they_have_seen(kind: Any, tmp_path: Path) -> None:
    one, other = (kind(str(tmp_path / "tokens.db")) for _ in range(2))
    assert one.ask(WRITE, headers(Token("orders", 7)))[0] == 200
    assert other.ask(WRITE, headers(Token("orders", 6)))[0] == 409


def test_a_connection_of_another_kind_passes(tmp_path: Path) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(FencedASGI(app, str(tmp_path / "t.db"))({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]


def test_the_file_of_tokens_may_be_a_database_of_the_application(tmp_path: Path, kind: Any) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (name TEXT)")
    server = kind(str(tmp_path / "shop.db"))
    assert server.ask(WRITE, headers(Token("orders", 7))) == (200, "done")
    assert server.ask(WRITE, headers(Token("orders", 6)))[0] == 409
