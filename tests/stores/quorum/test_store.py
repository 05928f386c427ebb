"""What the contract does not ask of a quorum: servers that differ, and what is left on them."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Key, Refused, Released, Renewal, Renewed, Slot, Stored
from incumbent.rules.notices import PAUSE, encode_notice
from incumbent.stores.quorum import open_quorum
from incumbent.stores.quorum.dialect import MARKER
from incumbent.stores.quorum.engine import QuorumEngine, QuorumStore
from tests.support.forks import in_a_child
from tests.support.needs import needs
from tests.support.pace import BUSY, LONG, lasted, took
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

ASK = Ask(30.0, "me")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


def url_of(servers: list[RedisServer], options: str = "") -> str:
    hosts = ",".join(f"127.0.0.1:{it.port}" for it in servers)
    return f"redis+quorum://{hosts}?restart_wait=0{options}"


@pytest.fixture
def engine(servers: list[RedisServer]) -> Iterator[QuorumEngine]:
    engine = open_quorum(url_of(servers))
    yield engine
    engine.store().close()


@pytest.fixture
def store(engine: QuorumEngine, servers: list[RedisServer]) -> QuorumStore:
    store = engine.store()
    connect_all(servers, store)
    return store


@pytest.fixture
def key() -> Key:
    return Key("unit", secrets.token_hex(6))


def soon() -> float:
    return clock.now() + 5


def take(store: QuorumStore, key: Key, claim: str | None = None) -> Granted:
    outcome = store.take(key, claim or secrets.token_hex(16), ASK, soon())
    assert isinstance(outcome, Granted)
    return outcome


def stored(server: RedisServer, key: Key) -> str:
    return server.cli("GET", f"incumbent:{{{key}}}")


def connect_all(servers: list[RedisServer], store: QuorumStore) -> None:
    """A take is content with two of three, and a busy machine connects the last one later."""

    def all_vote() -> bool:
        warm, claim = Key("unit", f"{secrets.token_hex(6)}-warm"), secrets.token_hex(16)
        take(store, warm, claim)
        return all(claim in stored(it, warm) for it in servers)

    eventually(all_vote)


def holds(server: RedisServer, key: Key, grant: Granted) -> bool:
    return f" {grant.claim} {grant.token} " in stored(server, key)


def all_let_go(servers: list[RedisServer], key: Key) -> bool:
    return [stored(it, key) for it in servers] == ["-1"] * 3


def test_a_minority_vote_is_given_back_at_once(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    for server in servers[:2]:
        server.cli("SET", f"incumbent:{{{key}}}", "another program's lock", "PX", "30000")
    outcome = store.take(key, secrets.token_hex(16), ASK, soon())
    assert isinstance(outcome, Refused)
    assert outcome.holders[0].foreign
    eventually(lambda: stored(servers[2], key) == "-1")


def test_a_lock_on_a_minority_stops_nobody(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    servers[0].cli("SET", f"incumbent:{{{key}}}", "another program's lock", "PX", "30000")
    take(store, key)


def test_a_frozen_server_is_not_waited_for_and_forgets_what_was_given_back(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    servers[1].freeze()
    try:
        began = clock.now()
        for _ in range(5):
            grant = take(store, key)
            assert store.give(key, grant.claim, grant.token, soon()) == Released()
        # Each frozen answer would cost the whole five seconds.
        assert took(began) < 5
    finally:
        servers[1].thaw()

    def is_forgotten() -> bool:
        store.read(key, soon())
        return stored(servers[1], key) == "-1"

    eventually(is_forgotten)


@pytest.mark.parametrize("node", range(3))
def test_a_server_that_forgot_the_scripts_votes_and_lets_go_at_once(
    servers: list[RedisServer], store: QuorumStore, key: Key, node: int
) -> None:
    servers[node].cli("SCRIPT", "FLUSH")
    grant = take(store, key)
    eventually(lambda: holds(servers[node], key, grant))
    servers[node].cli("SCRIPT", "FLUSH")
    assert store.give(key, grant.claim, grant.token, soon()) == Released()
    eventually(lambda: all_let_go(servers, key))


@pytest.mark.parametrize("node", range(3))
def test_a_connection_that_breaks_between_two_operations_costs_one_vote_at_most(
    servers: list[RedisServer], store: QuorumStore, key: Key, node: int
) -> None:
    servers[node].cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    grant = take(store, key)
    assert [holds(it, key, grant) for it in servers].count(True) >= 2
    assert store.give(key, grant.claim, grant.token, soon()) == Released()
    eventually(lambda: all_let_go(servers, key))


def test_the_end_of_a_lease_wakes_who_waits(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    grant = take(store, key)
    refusal = store.take(key, secrets.token_hex(16), ASK, soon())
    assert isinstance(refusal, Refused)
    release = threading.Timer(0.1, store.give, (key, grant.claim, grant.token, soon()))
    began = clock.now()
    release.start()
    store.wait_change(key, refusal.seen, soon())
    release.join()
    assert lasted(began, 0.05, BUSY)


def test_a_server_that_lost_a_lease_gets_it_back_with_a_renewal(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    grant = take(store, key)
    servers[2].cli("DEL", f"incumbent:{{{key}}}")
    renewal = Renewal(key, grant.claim, grant.token, 30.0, grant.epoch)
    assert store.renew([renewal], soon()) == [Renewed()]
    eventually(lambda: holds(servers[2], key, grant))


def test_a_server_that_missed_a_pause_is_told(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    grant = take(store, key)
    store.put(key, PAUSE, encode_notice(who="operator"), None, soon())
    companion = f"incumbent:{{{key}}}:r"
    servers[0].cli("DEL", companion)
    renewal = Renewal(key, grant.claim, grant.token, 30.0, grant.epoch)
    (outcome,) = store.renew([renewal], soon())
    assert isinstance(outcome, Renewed)
    assert [it.kind for it in outcome.notices] == ["pause"]
    eventually(lambda: "operator" in servers[0].cli("HGET", companion, "f:pause"))


def test_a_pause_that_one_server_missed_to_forget_stops_nobody(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    paused = store.put(key, PAUSE, encode_notice(), None, soon())
    assert isinstance(paused, Stored)
    store.put(key, PAUSE, None, None, soon())
    companion = f"incumbent:{{{key}}}:r"
    eventually(lambda: servers[0].cli("HGET", companion, "f:pause") == "-1")
    states = servers[0].cli("HGET", companion, "s").split()
    assert states[1:] == [str(paused.version)]
    servers[0].cli("HSET", companion, "f:pause", f"{paused.version} {{}}", "s", states[1])
    take(store, key)
    eventually(lambda: servers[0].cli("HGET", companion, "f:pause") == "-1")


def test_a_record_shows_what_each_server_has(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    grant = take(store, key)
    eventually(lambda: all(holds(it, key, grant) for it in servers))
    servers[1].cli("DEL", f"incumbent:{{{key}}}")

    def shown() -> list[bool]:
        nodes = store.read(key, soon()).nodes
        assert all(f"127.0.0.1:{it.port}" in line for it, line in zip(servers, nodes, strict=True))
        return [str(grant.token) in line for line in nodes]

    # Two are enough for a read, too.
    eventually(lambda: shown() == [True, False, True])


def test_another_list_of_members_is_refused(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    take(store, key)
    with RedisServer() as fourth:
        other = open_quorum(url_of([*servers[:2], fourth])).store()
        try:
            for ask in _operations(other, key):
                with pytest.raises(StoreError, match="belongs to a quorum with other members") as e:
                    ask()
                assert e.value.permanent
        finally:
            other.close()
        assert fourth.cli("GET", f"incumbent:{{{key}}}") == "-1"


@pytest.mark.parametrize("found", ["incumbent2 m 0", "incumbent3 m 0 15000 more", "what"])
def test_a_server_with_records_of_another_format_is_refused(found: str) -> None:
    with ExitStack() as stack:
        three = [stack.enter_context(RedisServer()) for _ in range(3)]
        store = open_quorum(url_of(three)).store()
        stack.callback(store.close)
        three[0].cli("SET", MARKER, found)
        for ask in _operations(store, Key("unit", "format")):
            with pytest.raises(StoreError, match=r"of format \d|of an unknown format") as e:
                ask()
            assert e.value.permanent
            assert "stop all instances" in str(e.value)
        assert three[0].cli("GET", MARKER) == found


def _operations(store: QuorumStore, key: Key) -> list[Callable[[], object]]:
    return [
        lambda: store.take(key, secrets.token_hex(16), ASK, soon()),
        lambda: store.renew([Renewal(key, "0" * 32, 1, 5.0)], soon()),
        lambda: store.put(key, PAUSE, b"{}", None, soon()),
    ]


def test_without_a_majority_the_error_names_each_server(servers: list[RedisServer]) -> None:
    url = f"redis+quorum://127.0.0.1:{servers[0].port},127.0.0.1:1,127.0.0.1:2?restart_wait=0"
    store = open_quorum(f"{url}&members=elsewhere").store()
    with pytest.raises(StoreUnavailable) as caught:
        store.take(Key("unit", "x"), secrets.token_hex(16), ASK, soon())
    assert "127.0.0.1:1/0" in str(caught.value)
    assert "127.0.0.1:2/0" in str(caught.value)
    store.close()


@needs(hasattr(os, "fork"), "fork, which is of POSIX")
def test_after_a_fork_parent_and_child_do_not_share_connections(
    store: QuorumStore, key: Key
) -> None:
    grant = take(store, key)

    def ask() -> int:
        refusal = store.take(key, secrets.token_hex(16), ASK, soon())
        take(store, Key("unit", f"{key.name}-child"))
        return 0 if isinstance(refusal, Refused) else 2

    assert in_a_child(ask) == 0
    assert store.give(key, grant.claim, grant.token, soon()) == Released()


def test_who_is_refused_a_used_slot_writes_only_where_servers_differ(
    servers: list[RedisServer], store: QuorumStore, key: Key
) -> None:
    companion, ask = f"incumbent:{{{key}}}:r", Ask(30.0, "me", slot=Slot("day", 60.0))

    def refused() -> bool:
        return isinstance(store.take(key, secrets.token_hex(16), ask, soon()), Refused)

    def states() -> set[str]:
        return {server.cli("HGET", companion, "s") for server in servers}

    granted = store.take(key, "0" * 32, ask, soon())
    assert isinstance(granted, Granted)
    assert store.give(key, granted.claim, granted.token, soon()) == Released()
    eventually(lambda: len(states()) == 1)
    before = states()
    assert refused()
    assert states() == before
    servers[2].cli("DEL", companion)
    assert refused()
    assert servers[2].cli("HEXISTS", companion, "u:day") == "1"


def test_a_quorum_that_was_only_read_so_far_is_founded_by_the_first_take(
    servers: list[RedisServer], key: Key
) -> None:
    for server in servers:
        server.cli("FLUSHALL")
    store = open_quorum(url_of(servers)).store()

    def all_are_read() -> bool:
        return all(it.endswith("free") for it in store.read(key, clock.now() + LONG).nodes)

    try:
        eventually(all_are_read)
        assert isinstance(store.take(key, "a" * 32, ASK, clock.now() + LONG), Granted)
        # Founded together, no server has a birth that others would have to wait for.
        assert [server.cli("GET", MARKER).split()[2] for server in servers] == ["0"] * 3
    finally:
        store.close()
