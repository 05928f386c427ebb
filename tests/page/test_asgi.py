"""The page as an ASGI application, driven as a server drives it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from incumbent.errors import ConfigError
from incumbent.locks.clients import Client
from incumbent.page import asgi
from incumbent.page.asgi import PageApp
from tests.page.test_site import BEARER, SECRET, Stub, client, store, stub
from tests.support.waiting import eventually

__all__ = ["client", "store", "stub"]

OURS = {"host": "page.example", "origin": "https://page.example"}


@dataclass
class Said:
    """What the application answered."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    ended: bool = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs = [(name.decode(), value.decode()) for name, value in message["headers"]]
            self.headers = dict(pairs)
            assert len(self.headers) == len(pairs)
            assert all(name == name.lower() for name in self.headers)
        else:
            self.body += message["body"].decode()
            self.ended = not message["more_body"]


def scope_of(path: str, method: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
    path, _, query = path.partition("?")
    given = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    return {**scope, "headers": given, "root_path": "", "server": ("10.0.0.1", 80), **more}


async def asked(
    app: PageApp,
    path: str,
    body: str | None = None,
    headers: dict[str, str] | None = None,
    method: str = "",
    **more: Any,
) -> Said:
    said, parts = Said(), [b"", (body or "").encode()]

    async def receive() -> dict[str, Any]:
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        return await asyncio.Event().wait()  # type: ignore[return-value]

    method = method or ("GET" if body is None else "POST")
    await app(scope_of(path, method, headers or OURS, **more), receive, said.send)
    return said


def run(app: PageApp, *asking: Coroutine[Any, Any, Said]) -> list[Said]:
    """What it answers, one after the other in one loop, without a lifespan."""

    async def all_of_them() -> list[Said]:
        return [await one for one in asking]

    try:
        return asyncio.run(all_of_them())
    finally:
        app.close()


def ask(app: PageApp, path: str, *args: Any, **more: Any) -> Said:
    (said,) = run(app, asked(app, path, *args, **more))
    return said


@pytest.fixture
def app(store: str, client: Client) -> PageApp:
    client.lock("telnet").acquire().release()
    return PageApp(store, who=lambda _: "ann")


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"robot:{SECRET}\n")
    path.chmod(0o600)
    return str(path)


def test_it_has_each_page_that_serve_has_with_the_same_headers(app: PageApp) -> None:
    paths = ("/", "/name?name=telnet", "/page.css", "/page.js", "/api/v1/openapi.json")
    found = run(app, *(asked(app, path) for path in (*paths, "/api/v1/leases/telnet", "/x")))
    assert [said.status for said in found] == [200] * 6 + [404]
    for said in found[:-1]:
        assert said.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in said.headers["content-security-policy"]
        assert said.headers["x-content-type-options"] == "nosniff"
        assert int(said.headers["content-length"]) == len(said.body.encode())
    assert "telnet" in found[0].body
    assert json.loads(found[-2].body)["result"]["name"] == "telnet"


def test_a_head_has_no_body_and_another_method_is_refused(app: PageApp) -> None:
    head, stream, put, post = run(
        app,
        asked(app, "/", method="HEAD"),
        asked(app, "/events", method="HEAD"),
        asked(app, "/", method="PUT"),
        asked(app, "/", ""),
    )
    assert (head.status, stream.status) == (200, 200)
    assert int(head.headers["content-length"]) > 1000
    assert (head.body, stream.body, head.ended, stream.ended) == ("", "", True, True)
    assert [(said.status, said.headers["allow"]) for said in (put, post)] == [
        (405, "GET, HEAD")
    ] * 2


def test_without_who_or_token_it_shows_itself_to_this_host_alone(
    store: str, client: Client
) -> None:
    client.lock("telnet").acquire().release()
    app = PageApp(store)
    local: dict[str, Any] = {"server": ("127.0.0.1", 80), "headers": {"host": "localhost"}}
    act = "name=telnet&wish=pause"
    ours = {"host": "localhost", "origin": "http://localhost", "authorization": "Bearer x"}
    here, there, socket, other, acted = run(
        app,
        asked(app, "/", **local),
        asked(app, "/", headers={"host": "localhost"}),
        asked(app, "/", **{**local, "server": ("/run/app.sock", None)}),
        asked(app, "/", **{**local, "headers": {"host": "evil.example"}}),
        asked(app, "/act", act, **{**local, "headers": ours}),
    )
    assert [one.status for one in (here, there, socket, other, acted)] == [200, 403, 403, 403, 403]
    assert "who=" in there.body
    assert not client.read("telnet").fields


def permit_in(page: Said) -> str:
    found = re.search(r'name="permit" value="(\w+)"', page.body)
    assert found is not None
    return found[1]


def test_the_users_own_authentication_says_who_acts(store: str, client: Client) -> None:
    client.lock("telnet").acquire().release()

    async def who(scope: Any) -> str | None:
        await asyncio.sleep(0)
        user: str | None = scope.get("user")
        return user

    app = PageApp(store, who=who)
    page = ask(app, "/name?name=telnet", user="ann")
    body = f"name=telnet&wish=pause&reason=tests&permit={permit_in(page)}"
    # Another process of the same server got the form, or has the next request.
    other = PageApp(store, who=who)
    found = run(
        other,
        asked(other, "/"),
        asked(other, "/", user=""),
        asked(other, "/act", body),
        asked(other, "/act", body, {"host": "page.example"}, user="ann"),
        asked(other, "/act", body, {**OURS, "origin": "https://evil.example"}, user="ann"),
        asked(other, "/act", "name=telnet&wish=pause", user="ann"),
    )
    assert [said.status for said in found] == [401, 401, 401, 403, 403, 403]
    assert not client.read("telnet").fields
    assert ask(other, "/act", body, user="ann\x00").headers["location"].startswith("name?name=")
    assert b'"ann' in client.read("telnet").fields["pause"].value
    # A header that no page of others can have a browser send.
    program = {"host": "page.example", "authorization": "Basic x"}
    assert ask(other, "/api/v1/leases/telnet/unpause", "{}", program, user="bo").status == 202
    assert not client.read("telnet").fields


def test_who_gives_a_name_or_nobody_is_let_in(store: str, client: Client) -> None:
    app = PageApp(store, who=lambda _: True)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="a name or None, not bool"):
        ask(app, "/")


def test_a_header_of_the_proxy_says_who_and_twice_it_says_nobody(
    store: str, client: Client
) -> None:
    app = PageApp(store, who="X-Forwarded-User")
    named = {**OURS, "x-forwarded-user": "ann"}
    assert [ask(app, "/", headers=one).status for one in (named, OURS)] == [200, 401]

    async def twice() -> Said:
        scope, said = scope_of("/", "GET", named), Said()
        scope["headers"].append((b"x-forwarded-user", b"mallory"))
        await app(scope, asyncio.Event().wait, said.send)  # type: ignore[arg-type]
        return said

    assert run(app, twice())[0].status == 401
    with pytest.raises(ConfigError, match="no name of a header"):
        PageApp(store, who="X Forwarded")


def test_the_token_lets_in_and_its_cookie_is_known_to_each_process(
    store: str, client: Client, token_file: str
) -> None:
    client.lock("telnet").acquire().release()
    app, other = (PageApp(store, token_file=token_file) for _ in range(2))
    question = ask(app, "/", headers={**OURS, "accept": "text/html"})
    assert (question.status, "<form" in question.body) == (401, True)
    login = ask(app, "/login", f"token={SECRET}")
    cookie = login.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert SECRET not in cookie
    browser = {**OURS, "cookie": cookie.partition(";")[0]}
    permit = permit_in(ask(app, "/name?name=telnet", headers=browser))
    assert ask(other, "/act", f"name=telnet&wish=pause&permit={permit}", browser).status == 303
    assert b'"robot by the page' in client.read("telnet").fields["pause"].value
    assert ask(other, "/api/v1/leases/telnet/unpause", "{}", BEARER).status == 202
    wrong = {"authorization": "Bearer wrong", "host": "page.example"}
    assert [ask(other, "/", headers=one).status for one in (wrong, OURS)] == [401, 401]


@pytest.mark.parametrize("in_path", [True, False])
def test_it_works_below_a_path(app: PageApp, in_path: bool) -> None:
    below = "/in/side" if in_path else ""
    more: dict[str, Any] = {"root_path": "/in/side"}
    found = run(
        app,
        asked(app, f"{below}/", **more),
        asked(app, f"{below}/api/v1/leases/telnet", **more),
        asked(app, "/in/side", **more),
    )
    assert [said.status for said in found] == [200, 200, 308]
    assert not re.search(r'(?:href|src|action)="/', found[0].body)
    assert found[2].headers["location"] == "side/"


def test_a_name_is_found_by_a_path_that_the_server_has_decoded(store: str, client: Client) -> None:
    client.lock("a/b:c@d").acquire().release()
    app = PageApp(store, who=lambda _: "ann")
    assert json.loads(ask(app, "/api/v1/leases/a/b:c@d").body)["result"]["name"] == "a/b:c@d"


def test_a_body_that_is_too_long_or_never_ends_does_nothing(app: PageApp) -> None:
    assert ask(app, "/act", "x" * 10_000).status == 413

    async def left() -> Said:
        said, parts = Said(), [{"type": "http.request", "body": b"name=", "more_body": True}]

        async def receive() -> dict[str, Any]:
            return parts.pop() if parts else {"type": "http.disconnect"}

        await app(scope_of("/act", "POST", OURS), receive, said.send)
        return said

    assert run(app, left())[0] == Said()


# -- streams, loops and lifespans ------------------------------------------------------------------


def test_changes_are_streamed_until_the_client_leaves(app: PageApp, client: Client) -> None:
    async def follow() -> Said:
        said, gone, first = Said(), asyncio.Event(), [{"type": "http.request"}]

        async def receive() -> dict[str, Any]:
            if first:
                return first.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        stream = asyncio.create_task(app(scope_of("/events", "GET", OURS), receive, said.send))
        while said.body.count("data: ") < 1:
            await asyncio.sleep(0.02)
        lease = await asyncio.to_thread(client.lock("new").acquire)
        while said.body.count("data: ") < 2:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(lease.release)
        assert not stream.done()
        gone.set()
        await stream
        return said

    (said,) = run(app, follow())
    assert said.headers["content-type"] == "text/event-stream"
    assert "content-length" not in said.headers
    assert "new" in said.body


def test_a_stream_ends_by_itself_so_that_a_server_can_shut_down(
    app: PageApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "_STREAM_MOST", 0.1)
    assert ask(app, "/events").ended


def test_a_viewer_who_takes_nothing_is_dropped(
    app: PageApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "_STREAM_MOST", 600.0)

    async def deaf() -> Said:
        said = Said()

        async def send(message: Any) -> None:
            await said.send(message)
            # Only now: the page itself may take longer.
            monkeypatch.setattr(asgi, "_VIEWER_TIMEOUT", 0.1)
            if "data: " in said.body:
                await asyncio.Event().wait()

        await app(scope_of("/events", "GET", OURS), asyncio.Event().wait, send)  # type: ignore[arg-type]
        return said

    assert not run(app, deaf())[0].ended


def test_the_loop_goes_on_while_the_store_is_silent(stub: Stub, store: str) -> None:
    app = PageApp(store, who=lambda _: "ann")
    stub.go.clear()

    async def both() -> Said:
        waits = asyncio.create_task(asked(app, "/"))
        while not stub.reads:
            await asyncio.sleep(0.01)
        style = await asked(app, "/page.css")
        assert not waits.done()
        stub.go.set()
        assert (await waits).status == 200
        return style

    assert run(app, both())[0].status == 200


def test_each_loop_is_answered_and_a_thread_ends_with_its_loop(
    app: PageApp, client: Client
) -> None:
    for _ in range(3):
        assert asyncio.run(asked(app, "/")).status == 200
        eventually(lambda: len(page_threads()) == 1)
    app.close()
    eventually(lambda: not page_threads())


def page_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "incumbent-page"]


def test_a_lifespan_ends_the_reading(app: PageApp, client: Client) -> None:
    async def live() -> list[str]:
        said: list[str] = []
        coming = iter(("lifespan.startup", "lifespan.shutdown"))

        async def receive() -> dict[str, Any]:
            if said:
                assert (await asked(app, "/")).status == 200
            return {"type": next(coming)}

        async def send(message: Any) -> None:
            said.append(message["type"])

        await app({"type": "lifespan"}, receive, send)
        return said

    assert asyncio.run(live()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    eventually(lambda: not page_threads())


def test_what_cannot_work_is_refused_at_once(store: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        PageApp("nothing://x")
    with pytest.raises(ConfigError, match="namespace"):
        PageApp(store, namespace="a b")
    with pytest.raises(ConfigError, match="cannot be read"):
        PageApp(store, token_file=str(tmp_path / "missing"))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    eventually(lambda: not page_threads())
