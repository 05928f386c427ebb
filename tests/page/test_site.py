"""The page through a listener: who may look and act, and that nobody who looks costs the others."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from incumbent import clock
from incumbent.errors import LeaseLost, StoreUnavailable
from incumbent.locks.clients import Client
from incumbent.page.site import PageSite
from incumbent.page.snapshot import Snapshot, SnapshotReader
from incumbent.runtime.link import link_for
from incumbent.serve.http import PageServer
from incumbent.serve.pages import TEXT, Page
from incumbent.stores.findings import GRANTS, UNKNOWN, WAITING, grants_nothing
from tests import tiers
from tests.page.records import NOW, held, snapshot
from tests.support.servers import free_port
from tests.support.waiting import eventually

SECRET = "s3cret-s3cret-s3cret"
BEARER = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path / 'leases.db'}"


@pytest.fixture
def client(store: str) -> Iterator[Client]:
    with Client(store) as made:
        yield made


@contextmanager
def serving(store: str, token_file: Path | None = None) -> Iterator[PageServer]:
    with closing(PageSite(store, "default")) as site:
        routes = {"/healthz": lambda _: Page(200, TEXT, "ok\n"), **site.routes()}
        secret = None if token_file is None else str(token_file)
        with closing(PageServer(routes, "127.0.0.1:0", secret)) as server:
            yield server


@contextmanager
def listening(store: str, token_file: Path | None = None) -> Iterator[str]:
    with serving(store, token_file) as server:
        yield server.url


@pytest.fixture
def url(store: str, client: Client) -> Iterator[str]:
    with listening(store) as served:
        yield served


@pytest.fixture
def guarded(store: str, client: Client, tmp_path: Path) -> Iterator[str]:
    token_file = tmp_path / "token"
    token_file.write_text(SECRET)
    token_file.chmod(0o600)
    with listening(store, token_file) as served:
        yield served


def ask(
    url: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, str]:
    link = HTTPConnection(urlsplit(url).netloc, timeout=30)
    link.request("GET" if body is None else "POST", path, body, headers or {})
    response = link.getresponse()
    said = response.read().decode()
    link.close()
    return response, said


@contextmanager
def following(
    url: str, window: str = "1h", since: str = ""
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Gives what reads the next change that the server sends."""
    where = f"{url}/events?window=1h&since={since}"
    with urllib.request.urlopen(where, timeout=30) as stream:

        def following_change() -> dict[str, Any]:
            for line in stream:
                if line.startswith(b"data: "):
                    found: dict[str, Any] = json.loads(line[6:])
                    return found
            raise AssertionError("the stream has ended")

        yield following_change


class Stub(SnapshotReader):
    """A reader of a store that is not there, which counts how often it is read."""

    def __init__(self) -> None:
        super().__init__("redis://nowhere", "default")
        self.reads: list[float] = []
        self.go = threading.Event()
        self.go.set()
        self.found = snapshot(held("telnet"))

    def read(self) -> Snapshot:
        self.reads.append(clock.now())
        assert self.go.wait(30)
        wall, asked = clock.wall(), clock.now()
        return replace(self.found, now=wall, read_at=wall, asked=asked)

    def close(self) -> None:
        pass


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    made = Stub()
    monkeypatch.setattr("incumbent.page.site.SnapshotReader", lambda *_: made)
    yield made
    made.go.set()


# -- looking ----------------------------------------------------------------------------------


def test_the_page_shows_what_is_held_and_loads_nothing_from_other_hosts(
    url: str, client: Client
) -> None:
    with client.lock("telnet", holder="node-1").acquire():
        response, said = ask(url, "/")
    assert response.status == 200
    assert "node-1" in said
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r'(?:src|href|action)="(?:https?:)?//', said)
    for path in re.findall(r'(?:src|href)="([^"#.][^":]+)"', said):
        assert ask(url, f"/{path}")[0].status == 200


def test_changes_are_sent_to_who_follows(url: str, client: Client) -> None:
    boot = re.search(r'data-edition="([^"]+)"', ask(url, "/")[1])
    assert boot is not None
    with following(url, since=boot[1]) as change, client.lock("telnet", holder="node-1").acquire():
        while "node-1" not in json.dumps(said := change()):
            pass
    assert "leases" in said["orders"]


def test_an_edition_of_another_process_is_no_ground_for_a_patch(stub: Stub, store: str) -> None:
    with listening(store) as url, following(url, since="beef-99999999999999999999") as change:
        assert "store-state" in change()["rows"]


def test_the_page_of_a_name_that_nobody_knows_is_missing(url: str) -> None:
    assert ask(url, "/name?name=%3Cscript%3E")[0].status == 404
    assert ask(url, "/events?window=1y")[0].status == 404


def test_a_store_that_never_answered_is_said_to_be_silent() -> None:
    with listening(f"redis://127.0.0.1:{free_port()}") as url:
        _, said = ask(url, "/")
    assert "gives no answer" in said
    assert 'Read <span id="read">never' in said


def test_a_head_is_that_of_the_page_and_has_no_body(url: str) -> None:
    for path, status in (("/", 200), ("/name?name=x", 404), ("/events?window=1h", 200)):
        link = HTTPConnection(urlsplit(url).netloc, timeout=30)
        link.request("HEAD", path)
        response = link.getresponse()
        assert (response.status, response.read()) == (status, b"")
        link.close()


def test_another_site_whose_name_leads_here_reads_nothing(url: str) -> None:
    for path in ("/", "/name?name=x", "/events?window=1h"):
        assert ask(url, path, headers={"Host": "evil.example"})[0].status == 403
    port = urlsplit(url).port
    assert ask(url, "/", headers={"Host": f"localhost:{port}"})[0].status == 200


# -- doing ------------------------------------------------------------------------------------


def logged_in(url: str) -> dict[str, str]:
    response, _ = ask(url, "/login", f"token={SECRET}", {"Origin": url})
    assert response.status == 303
    cookie = response.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
    assert SECRET not in cookie
    return {"Cookie": cookie.partition(";")[0], "Origin": url}


def permit_of(url: str, name: str, headers: dict[str, str]) -> str:
    found = re.search(
        r'name="permit" value="(\w+)"', ask(url, f"/name?name={name}", headers=headers)[1]
    )
    assert found is not None
    return found[1]


def test_a_browser_is_asked_for_the_token_and_gets_a_cookie(guarded: str) -> None:
    response, said = ask(guarded, "/", headers={"Accept": "text/html"})
    assert response.status == 401
    assert "<form" in said
    assert ask(guarded, "/", headers=logged_in(guarded))[0].status == 200
    assert ask(guarded, "/login", "token=wrong", {"Origin": guarded})[0].status == 401
    assert ask(guarded, "/", headers={"Cookie": "incumbent-1=x"})[0].status == 401


def test_a_form_of_the_page_pauses_and_unpauses(guarded: str, client: Client) -> None:
    client.lock("telnet").acquire().release()
    headers = logged_in(guarded)
    permit = permit_of(guarded, "telnet", headers)
    body = f"name=telnet&wish=pause&reason=tests&permit={permit}"
    response, _ = ask(guarded, "/act", body, headers)
    assert response.headers["Location"] == "name?name=telnet&done=pause"
    assert b"tests" in client.read("telnet").fields["pause"].value
    assert "paused" in ask(guarded, f"/{response.headers['Location']}", headers=headers)[1]
    ask(guarded, "/act", f"name=telnet&wish=unpause&permit={permit}", headers)
    assert not client.read("telnet").fields


def test_a_holder_is_asked_to_resign_and_a_job_is_triggered(guarded: str, client: Client) -> None:
    with client.lock("telnet").acquire() as lease:
        ask(guarded, "/act", "name=telnet&wish=resign", BEARER)
        asked = json.loads(client.read("telnet").fields["resign"].value)
        assert asked["token"] == lease.fencing_token
    ask(guarded, "/act", "name=nightly&wish=trigger&reason=now", BEARER)
    (field,) = client.read("@cron").fields.items()
    assert field[0].startswith("trigger/")
    assert json.loads(field[1].value)["job"] == "nightly"


def test_all_who_share_a_name_have_a_row_and_are_asked_to_resign(
    guarded: str, client: Client
) -> None:
    leases = [client.semaphore("api", 3, holder=who).acquire(0) for who in ("alice", "bob")]
    said = ask(guarded, "/name?name=api", headers=logged_in(guarded))[1]
    assert all(who in said for who in ("alice", "bob", "2 of 3 permits"))
    ask(guarded, "/act", "name=api&wish=resign", BEARER)
    for lease in leases:
        with pytest.raises(LeaseLost, match="resign by the page"):
            lease.renew()


def test_nothing_is_done_for_a_page_of_others_or_without_the_token(
    url: str, guarded: str, client: Client
) -> None:
    client.lock("telnet").acquire().release()
    headers = logged_in(guarded)
    body = f"name=telnet&wish=pause&permit={permit_of(guarded, 'telnet', headers)}"
    without = {name: value for name, value in headers.items() if name != "Origin"}
    refused = [
        ask(guarded, "/act", body, {**headers, "Origin": "https://evil.example"}),
        ask(guarded, "/act", body, {**headers, "Origin": "null"}),
        ask(guarded, "/act", body, without),
        ask(guarded, "/act", "name=telnet&wish=pause", headers),
        ask(guarded, "/act", "name=telnet&wish=pause&permit=x", headers),
        ask(guarded, "/act", body, {"Origin": guarded}),
        ask(url, "/act", body, {"Origin": url}),
    ]
    assert [response.status for response, _ in refused] == [403, 403, 403, 403, 403, 401, 403]
    assert not client.read("telnet").fields
    assert ask(guarded, "/act", "x" * 10_000, BEARER)[0].status == 413


@pytest.mark.parametrize(
    "body", ["name=a&wish=format", "name=@cron&wish=pause", "name=%20&wish=pause", "wish=pause", ""]
)
def test_a_wish_that_makes_no_sense_is_refused(guarded: str, client: Client, body: str) -> None:
    assert ask(guarded, "/act", body, BEARER)[0].status == 400
    assert not client.scan()


def test_without_a_token_the_page_offers_nothing_to_do(url: str, client: Client) -> None:
    client.lock("telnet").acquire().release()
    assert "/act" not in ask(url, "/name?name=telnet")[1]


def test_a_wish_that_the_store_does_not_hear_is_not_said_to_be_done(
    guarded: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(PageSite, "_do", silent)
    response, said = ask(guarded, "/act", "name=telnet&wish=pause", BEARER)
    assert response.status == 503
    assert "not done, or not known: no answer" in said


# -- what looking costs -----------------------------------------------------------------------


def test_many_who_look_share_one_reading_a_second(stub: Stub, store: str) -> None:
    began = clock.now()
    with listening(store) as url:
        for _ in range(20):
            assert "node-1" in ask(url, "/")[1]
    assert len(stub.reads) <= 1 + clock.now() - began


def test_a_page_is_read_anew_although_the_wall_clock_was_set_back(
    url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = clock.wall
    assert "node-1" not in ask(url, "/")[1]
    monkeypatch.setattr(clock, "wall", lambda: wall() - 2400)
    with client.lock("telnet", holder="node-1").acquire():
        eventually(lambda: "node-1" in ask(url, "/")[1])


def test_while_nobody_looks_nothing_is_read(stub: Stub, store: str, fast: None) -> None:
    with listening(store) as url:
        time.sleep(0.1)
        assert not stub.reads
        with following(url) as change:
            change()
            change()
            assert len(stub.reads) >= 2
        eventually(lambda: _is_quiet(stub))


def _is_quiet(stub: Stub) -> bool:
    before = len(stub.reads)
    time.sleep(0.3)
    return len(stub.reads) == before


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("incumbent.page.editions._EVERY", 0.02)
    monkeypatch.setattr("incumbent.page.editions._SHARE", 1.0)


def test_the_dearer_a_reading_is_the_longer_is_the_time_to_the_next(
    stub: Stub, store: str, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("incumbent.page.editions._SHARE", 1e-9)
    monkeypatch.setattr("incumbent.page.editions._SLOWEST", 0.5)
    with listening(store) as url, following(url) as change:
        change()
        change()
        assert "every" in change()["read"]
    # Who comes hurries the reading once.
    assert stub.reads[-1] - stub.reads[0] >= 0.3


def test_probes_are_answered_while_a_silent_store_keeps_many_who_look(
    stub: Stub, store: str
) -> None:
    stub.go.clear()
    with listening(store) as url:
        links = []
        for _ in range(40):
            link = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0))
            link.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            links.append(link)
            assert ask(url, "/healthz")[1] == "ok\n"
        stub.go.set()
        for link in links:
            assert link.recv(12) == b"HTTP/1.1 200"
            link.close()


def test_more_viewers_than_there_are_places_are_turned_away(
    stub: Stub, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("incumbent.serve.http._VIEWERS", 1)
    with listening(store) as url:
        with following(url) as change:
            change()
            assert ask(url, "/")[0].status == 503
            assert ask(url, "/healthz")[0].status == 200
        eventually(lambda: ask(url, "/")[0].status == 200)


@pytest.mark.left(tiers.LONG)
def test_one_who_never_reads_is_dropped_and_the_others_are_not(
    stub: Stub, store: str, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine takes long to send the others so much.
    monkeypatch.setattr("incumbent.serve.http._VIEWER_TIMEOUT", 8.0)
    # More than the kernel keeps for a connection.
    stub.found = snapshot(*(held(f"lease-{number}", "x" * 20_000) for number in range(200)))
    with serving(store) as server, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", urlsplit(server.url).port))
        deaf.sendall(b"GET /events?window=1h HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with following(server.url) as change:
            eventually(lambda: change() and server._viewers == 1)
            assert deaf.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 200"
            change()


def test_a_site_that_closes_leaves_no_thread_behind(store: str, client: Client) -> None:
    with listening(store) as url:
        ask(url, "/")
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("incumbent-p")])


def test_what_the_store_says_to_wait_for_is_asked_until_it_is_over(
    store: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [grants_nothing("up for 1s: it grants nothing yet", "wait 14s"), ("warning", "x", "y")]
    with closing(SnapshotReader(store, "default")) as reader:
        engine = link_for(reader.client).engine
        monkeypatch.setattr(type(engine), "diagnose", lambda *_: list(found))
        why = "nobody is given a lease yet: up for 1s: it grants nothing yet"
        assert reader.read().grants == (WAITING, why)
        found.clear()
        assert reader.read().grants == GRANTS
        found.append(grants_nothing("again", "wait"))
        assert reader.read().grants == GRANTS, "asked too often"


def test_a_store_that_was_away_is_examined_at_once_and_may_leave_it_open(
    store: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.lock("telnet").acquire().release()
    with closing(SnapshotReader(store, "default")) as reader:
        assert reader.read().grants == GRANTS

        def fails(*_: object) -> None:
            raise StoreUnavailable("connection refused")

        with monkeypatch.context() as outage:
            outage.setattr(reader.client, "scan", fails)
            assert reader.read().problem
        with monkeypatch.context() as outage:
            outage.setattr(type(link_for(reader.client).engine), "diagnose", fails)
            found = reader.read()
        assert found.grants.word == UNKNOWN
        assert "connection refused" in found.grants.why
        assert not found.problem, "its records were read"
        assert reader.read().grants == GRANTS


def test_an_outage_is_said_with_its_beginning_and_its_reason(
    store: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SnapshotReader(store, "default")
    with closing(reader):
        client.lock("telnet").acquire().release()
        assert reader.read().records

        def fails(*_: object) -> None:
            raise StoreUnavailable("connection refused")

        monkeypatch.setattr(reader.client, "scan", fails)
        first, second = reader.read(), reader.read()
        assert second.problem == "connection refused"
        assert second.records == reader.read().records
        assert first.outages[0][0] == second.outages[0][0]
        assert len(second.outages) == 1
        monkeypatch.undo()
        again = reader.read()
        assert not again.problem
        assert again.outages
        assert again.now > NOW
