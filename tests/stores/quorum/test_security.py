"""A quorum over TLS with certificates of its clients, and with a user that may do no more than it
needs; what one server refuses is survived, what a majority refuses is said for good."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    Ask,
    Gone,
    Granted,
    Key,
    Parting,
    Refused,
    Released,
    Renewal,
    Renewed,
    Stored,
)
from incumbent.stores.redis.records import Naming
from tests.stores.quorum.world import Party, channel_of, party, soon
from tests.support.pace import LONG, WOKEN, took
from tests.support.servers import ROOT, RedisServer, TlsFiles
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

ASK = Ask(60.0, "host-1")
TRUSTED = "restart_wait=0"
Listeners = Callable[[str], int]


def url_of(servers: Sequence[RedisServer], login: str = "", options: str = "") -> str:
    scheme = "rediss+quorum" if servers[0].tls else "redis+quorum"
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in servers)
    return f"{scheme}://{login}{hosts}?{TRUSTED}{options}"


@contextmanager
def running(
    make: Callable[[], RedisServer], count: int = 3, *others: Callable[[], RedisServer]
) -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(each()) for each in (*[make] * count, *others)]


# -- everything that a lease needs, on either side


def everything(one: Party, listeners: Listeners) -> None:
    """Take, renew, wait and give, by threads and by coroutines."""
    on_threads(one, listeners)
    asyncio.run(on_a_loop(one, listeners))


def on_threads(one: Party, listeners: Listeners) -> None:
    granted, other = one.take(ASK), Party(one.engine, one.key)
    assert isinstance(one.renew(granted, 10.0), Renewed)
    refused = other.try_take(ASK)
    assert isinstance(refused, Refused)
    with ThreadPoolExecutor(1) as pool:
        began = clock.now()
        waiting = pool.submit(other.store.wait_change, one.key, refused.seen, soon(LONG))
        eventually(lambda: listeners(channel_of(one.key)) >= 2)
        assert one.give(granted) == Released()
        waiting.result()
        assert took(began) < WOKEN
    assert isinstance(one.give(granted), Gone)


async def on_a_loop(one: Party, listeners: Listeners) -> None:
    store = one.engine.async_store()
    granted = await store.take(one.key, one.claim, ASK, soon())
    assert isinstance(granted, Granted)
    renewal = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)
    assert await store.renew([renewal], soon()) == [Renewed()]
    refused = await store.take(one.key, "other" * 5, ASK, soon())
    assert isinstance(refused, Refused)
    began = clock.now()
    waiting = asyncio.ensure_future(store.wait_change(one.key, refused.seen, soon(LONG)))
    channel = channel_of(one.key)
    while await asyncio.to_thread(listeners, channel) < 2:
        await asyncio.sleep(0.005)
    assert await store.give(one.key, one.claim, granted.token, soon()) == Released()
    await waiting
    assert took(began) < WOKEN
    await store.aclose()


def by_cli(servers: Sequence[RedisServer]) -> Listeners:
    """How many of the servers somebody listens to."""

    def count(channel: str) -> int:
        return sum(_listens(one, channel) for one in servers)

    return count


def _listens(server: RedisServer, channel: str) -> bool:
    with redis.Redis(port=server.port) as raw:
        return bool(raw.pubsub_numsub(channel)[0][1])


def refused_for_good(url: str, *words: str) -> None:
    """Both sides say so soon, and name the servers."""
    for way in (on_threads, lambda one, count: asyncio.run(on_a_loop(one, count))):
        with party(url) as one:
            began = clock.now()
            with pytest.raises(StoreUnavailable) as caught:
                one.try_take(ASK, LONG) if way is on_threads else way(one, lambda _: 0)
            assert took(began) < 4.0
            assert caught.value.permanent
            assert all(word in str(caught.value) for word in words), caught.value


# -- TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Made by another authority."""
    return TlsFiles(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="module", name="_strict")
def all_strict(files: TlsFiles) -> Iterator[list[RedisServer]]:
    with running(lambda: RedisServer(tls=files)) as servers:
        for one in servers:
            wants_certificates(one)
        yield servers


@pytest.fixture
def strict(_strict: list[RedisServer], files: TlsFiles) -> list[RedisServer]:
    """Servers that want to see a certificate of their clients, and are of no quorum yet."""
    for server in _strict:
        with admin(server, files) as raw:
            raw.flushall()
    return _strict


def wants_certificates(server: RedisServer) -> None:
    server.cli("CONFIG", "SET", "tls-auth-clients", "yes")


def shown(files: TlsFiles, cert: TlsFiles) -> str:
    return f"&ca={files.ca}&cert={cert.cert}&cert_key={cert.key}"


@contextmanager
def admin(server: RedisServer, files: TlsFiles) -> Iterator[redis.Redis]:
    with redis.Redis(
        port=server.port,
        ssl=True,
        ssl_ca_certs=str(files.ca),
        ssl_certfile=str(files.cert),
        ssl_keyfile=str(files.key),
    ) as raw:
        yield raw


def by_tls(servers: Sequence[RedisServer], files: TlsFiles) -> Listeners:
    def count(channel: str) -> int:
        found = 0
        for one in servers:
            with admin(one, files) as raw:
                found += bool(raw.pubsub_numsub(channel)[0][1])
        return found

    return count


def test_certificates_open_all_servers_also_after_a_flush_and_a_restart(
    strict: list[RedisServer], files: TlsFiles
) -> None:
    with party(url_of(strict, options=shown(files, files))) as one:
        everything(one, by_tls(strict, files))
        for server in strict:
            with admin(server, files) as raw:
                raw.script_flush()
        everything(one, by_tls(strict, files))
        for server in strict[:2]:
            server.restart()
            wants_certificates(server)
        everything(one, by_tls(strict, files))


def test_one_server_of_another_authority_is_survived(
    strict: list[RedisServer], files: TlsFiles, strangers: TlsFiles
) -> None:
    with RedisServer(tls=strangers) as odd:
        members = [*strict[:2], odd]
        options = shown(files, files) + "&members=with-a-stranger"
        with party(url_of(members, options=options)) as one:
            everything(one, by_tls(strict[:2], files))


def test_a_majority_of_another_authority_is_final(
    strict: list[RedisServer], files: TlsFiles, strangers: TlsFiles
) -> None:
    with running(lambda: RedisServer(tls=strangers), 2) as odd:
        ports = [str(one.port) for one in odd]
        refused_for_good(url_of([strict[0], *odd], options=shown(files, files)), *ports)


def test_a_client_whose_certificate_they_do_not_trust_is_refused_everywhere(
    strict: list[RedisServer], files: TlsFiles, strangers: TlsFiles
) -> None:
    with party(url_of(strict, options=shown(files, strangers))) as one:
        began = clock.now()
        with pytest.raises(StoreUnavailable) as caught:
            one.try_take(ASK)
        assert took(began) < 4.0
        said = str(caught.value)
        assert all(str(server.port) in said for server in strict)
        # A server may also hang up before it says why.
        assert caught.value.permanent == (said.count("ALERT") >= 2)


# -- a user with the rights that the documentation names


RULE = re.search(
    r"ACL SETUSER incumbent on >SECRET (.*?)```",
    (Path(ROOT) / "docs" / "redis.md").read_text(),
    re.DOTALL,
)


def with_users(folder: Path, secret: str = "secret") -> RedisServer:
    """One that keeps its users, and what it was told, over a restart."""
    assert RULE
    users = folder / f"{secret}-{len([*folder.iterdir()])}.acl"
    rule = " ".join(RULE[1].split())
    users.write_text(f"user default on nopass ~* &* +@all\nuser incumbent on >{secret} {rule}\n")
    return RedisServer(["--appendonly", "yes", "--appendfsync", "always", "--aclfile", str(users)])


@pytest.fixture(scope="module", name="_guarded")
def all_guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    folder = tmp_path_factory.mktemp("acl")
    with running(lambda: with_users(folder)) as servers:
        yield servers


@pytest.fixture
def guarded(_guarded: list[RedisServer]) -> list[RedisServer]:
    """Servers with users, and of no quorum yet."""
    for server in _guarded:
        server.cli("FLUSHALL")
    return _guarded


LOGIN = "incumbent:secret@"


def more(one: Party) -> None:
    """What else there is: switches, candidates, records, metadata, a closing."""
    granted = one.take(Ask(10.0, "h", candidacy=20.0))
    other = Party(one.engine, one.key)
    assert isinstance(other.try_take(Ask(10.0, "other", candidacy=20.0)), Refused)
    meta = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch, b"meta")
    assert one.store.renew([meta], soon()) == [Renewed()]
    assert isinstance(one.store.put(one.key, "pause", b"{}", None, soon()), Stored)
    one.store.put(one.key, "pause", None, None, soon())
    record = one.store.read(one.key, soon())
    assert (record.holdings[0].meta, len(record.candidates)) == (b"meta", 1)
    assert [it.key for it in one.store.scan("faults", one.key.name, soon())] == [one.key]
    given = one.store.give(one.key, one.claim, None, soon(), parting=Parting(closed_for=0.01))
    assert given == Released()
    errors = [it for it in one.engine.diagnose(15.0, soon()) if it[0] == "error"]
    assert not errors


def anew(one: Party) -> Party:
    return Party(one.engine)


def test_the_documented_rights_are_enough_also_after_a_flush_and_a_restart(
    guarded: list[RedisServer],
) -> None:
    with party(url_of(guarded, LOGIN)) as one:
        everything(one, by_cli(guarded))
        more(anew(one))
        for server in guarded:
            server.cli("SCRIPT", "FLUSH")
        everything(anew(one), by_cli(guarded))
        more(anew(one))
        for server in guarded:
            server.restart()
        more(anew(one))
        everything(anew(one), by_cli(guarded))


def test_many_leases_are_planted_again_where_scripts_cannot_be_loaded(
    guarded: list[RedisServer],
) -> None:
    with party(url_of(guarded, LOGIN)) as one:
        holders = [anew(one) for _ in range(3)]
        granted = [each.take(ASK) for each in holders]
        guarded[0].cli("FLUSHALL")
        guarded[0].cli("SCRIPT", "FLUSH")
        batch = [
            Renewal(each.key, each.claim, it.token, 10.0, it.epoch)
            for each, it in zip(holders, granted, strict=True)
        ]

        def planted() -> bool:
            assert one.store.renew(batch, soon()) == [Renewed()] * 3
            names = [Naming(None).of(each.key).lease for each in holders]
            return guarded[0].cli("EXISTS", *names) == "3"

        eventually(planted)


def test_a_script_that_was_forgotten_is_sent_again_while_one_server_is_frozen(
    guarded: list[RedisServer],
) -> None:
    async def main(one: Party) -> None:
        store = one.engine.async_store()
        granted = await store.take(one.key, one.claim, ASK, soon())
        assert isinstance(granted, Granted)
        renewal = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)
        place = Naming(None).of(one.key).lease
        while not all(str(granted.token) in server.cli("GET", place) for server in guarded):
            # One that was late, or voted in an earlier round, has it by now.
            assert await store.renew([renewal], soon()) == [Renewed()]
        for server in guarded:
            server.cli("SCRIPT", "FLUSH")
        guarded[2].freeze()
        assert await store.give(one.key, one.claim, granted.token, soon()) == Released()
        await store.aclose()

    with party(url_of(guarded, LOGIN)) as one:
        try:
            asyncio.run(main(one))
            guarded[2].thaw()
            granted = anew(one).take(ASK)
            for server in guarded:
                server.cli("SCRIPT", "FLUSH")
            guarded[2].freeze()
            assert isinstance(granted, Granted)
            assert isinstance(anew(one).try_take(ASK), Granted)
        finally:
            guarded[2].thaw()


def test_a_wrong_password_at_one_server_is_survived_and_at_two_final(
    guarded: list[RedisServer], tmp_path: Path
) -> None:
    with running(lambda: with_users(tmp_path, "changed"), 2) as odd:
        for server in guarded:
            server.cli("FLUSHALL")
        members = [*guarded[:2], odd[0]]
        with party(url_of(members, LOGIN, "&members=one-changed")) as one:
            everything(one, by_cli(guarded[:2]))
        ports = [str(each.port) for each in odd]
        refused_for_good(url_of([guarded[0], *odd], LOGIN), "username-password", *ports)


def test_a_user_that_may_not_do_it_at_a_majority_is_told_so(guarded: list[RedisServer]) -> None:
    for server in guarded[:2]:
        server.cli("ACL", "SETUSER", "incumbent", "-info")
    try:
        refused_for_good(url_of(guarded, LOGIN), "NOPERM")
    finally:
        for server in guarded[:2]:
            server.cli("ACL", "SETUSER", "incumbent", "+info")


def test_a_user_that_may_not_touch_the_markers_takes_nothing(guarded: list[RedisServer]) -> None:
    """The key that says which quorum a server belongs to is one of those a user needs."""
    key = Key("faults", "markers")
    for server in guarded:
        server.cli("ACL", "SETUSER", "incumbent", "resetkeys", "~incumbent:{faults*")
    try:
        with party(url_of(guarded, LOGIN)) as one, pytest.raises(StoreUnavailable) as caught:
            one.key = key
            one.try_take(ASK)
        assert "NOPERM" in str(caught.value)
        assert caught.value.permanent
    finally:
        for server in guarded:
            server.cli("ACL", "SETUSER", "incumbent", "resetkeys", "~incumbent:*")
