"""Whoever decided by what is no longer so writes nothing; the unreadable is not overwritten.

An operation is stopped between its two requests, and another client comes in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Key, Parting, Queue, Queued, Refused, Released, Renewal
from incumbent.rules.codec import encoded
from incumbent.rules.record import NOTHING
from incumbent.stores import recall
from incumbent.stores.plan import Plan, run_blocking
from incumbent.stores.postgresql import open_postgresql
from incumbent.stores.postgresql.engine import PostgresStore
from incumbent.stores.registers import Wanted
from tests.stores.postgresql.world import MovedWorld, new_claim, soon
from tests.support.postgresql import PostgresServer

pytestmark = pytest.mark.server

KEY = Key("default", "job")
ALONE = Ask(10.0, "me")
SHARED = Ask(10.0, "me", permits=1)


@pytest.fixture
def world(postgres_server: PostgresServer) -> Iterator[MovedWorld]:
    made = MovedWorld(postgres_server, 1_800_000_000.0)
    yield made
    made.engine.store().close()


@pytest.fixture
def store(world: MovedWorld) -> PostgresStore:
    store = world.engine.store()
    assert isinstance(store, PostgresStore)
    return store


@pytest.fixture
def other(world: MovedWorld) -> Iterator[PostgresStore]:
    """Another client."""
    url = world.server.url_of(world.database)
    store = open_postgresql(f"{url}?restart_wait=0").store()
    assert isinstance(store, PostgresStore)
    yield store
    store.close()


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the client's clock go on."""
    monkeypatch.setattr(recall, "_now", lambda: 1_000.0)


def carried_out(store: PostgresStore, plan: Plan[Any, Any]) -> tuple[Any, list[bytes]]:
    """The outcome of a plan, and its requests."""
    operations = store.operations
    (wire,) = operations.idle
    program, asked, reply = (
        operations.dialect.translated(plan, wire.ahead, soon()),
        list[bytes](),
        None,
    )
    while True:
        try:
            request = next(program) if reply is None else program.send(reply)
        except StopIteration as done:
            return done.value, asked
        asked.append(request.sql)
        reply = run_blocking(wire.query(request, soon()))


def between(
    store: PostgresStore, ask: Ask, happens: Callable[[], object], *, recalls: bool = False
) -> Any:
    """The outcome of a take by load and swap, if this happens between the two.

    `recalls`: instead of the load it goes by what was written last.
    """
    store.read(KEY, soon())
    operations = store.operations
    (wire,) = operations.idle
    if not recalls:
        operations.dialect.recalled(Wanted(KEY))  # once
    plan = operations.dialect.take(KEY, new_claim(), ask)
    program = operations.dialect.translated(plan, wire.ahead, soon())
    request = next(program)
    assert (b"swap" in request.sql) is recalls
    happened = False
    while True:
        if b"swap" in request.sql and not happened:
            happened = True
            happens()
        try:
            request = program.send(run_blocking(wire.query(request, soon())))
        except StopIteration as done:
            assert happened
            return done.value


def taken(store: PostgresStore, ask: Ask = ALONE) -> Granted:
    granted = store.take(KEY, new_claim(), ask, soon())
    assert isinstance(granted, Granted)
    return granted


def version(world: MovedWorld) -> int:
    ((found,),) = world.server.psql("select version from incumbent.record", world.database)
    return int(found)


# -- what has changed meanwhile --------------------------------------------------------------------


@pytest.mark.parametrize("recalls", [False, True])
def test_of_two_that_saw_the_same_free_permit_one_is_granted_it(
    store: PostgresStore, other: PostgresStore, recalls: bool
) -> None:
    store.give(KEY, (first := taken(store, SHARED)).claim, first.token, soon())
    outcome = between(store, SHARED, lambda: taken(other, SHARED), recalls=recalls)
    assert isinstance(outcome, Refused)


def test_of_two_that_saw_a_name_that_nobody_knew_one_is_granted_it(store: PostgresStore) -> None:
    outcome = between(store, SHARED, lambda: taken(store, SHARED))
    assert isinstance(outcome, Refused)


def test_each_write_has_another_version(world: MovedWorld, store: PostgresStore) -> None:
    granted = taken(store)
    versions = [version(world)]
    renewal = Renewal(KEY, granted.claim, granted.token, 20.0, granted.epoch)
    steps: list[Callable[[], object]] = [
        lambda: store.renew([renewal], soon()),
        lambda: store.give(KEY, granted.claim, granted.token, soon()),
        lambda: taken(store),
        lambda: store.put(KEY, "f", b"x", None, soon()),
    ]
    for step in steps:
        step()
        versions.append(version(world))
    assert versions == sorted(set(versions))


def test_a_version_does_not_come_back_with_a_name_that_was_forgotten(
    world: MovedWorld, store: PostgresStore
) -> None:
    first = taken(store, SHARED)
    before = version(world)
    store.give(KEY, first.claim, first.token, soon())
    world.pass_time(4 * 86_400)
    world.server.psql("select incumbent.sweep()", world.database)
    assert world.server.psql("select from incumbent.record", world.database) == []
    world.pass_time(-8 * 86_400)
    taken(store, SHARED)
    assert version(world) > before


@pytest.mark.parametrize("recalls", [False, True])
def test_what_was_decided_in_another_incarnation_is_not_written(
    world: MovedWorld, store: PostgresStore, recalls: bool
) -> None:
    store.give(KEY, (first := taken(store, SHARED)).claim, first.token, soon())

    def crash() -> None:
        world.server.psql("truncate incumbent.epoch", world.database)

    outcome = between(store, SHARED, crash, recalls=recalls)
    # It was decided anew, by the incarnation that has begun.
    assert isinstance(outcome, Granted)
    assert outcome.epoch != first.epoch


def test_a_server_whose_clock_stepped_back_writes_nothing(
    world: MovedWorld, store: PostgresStore
) -> None:
    store.give(KEY, (first := taken(store, SHARED)).claim, first.token, soon())
    with pytest.raises(StoreUnavailable, match=r"stepped back by 5\.000 s"):
        between(store, SHARED, lambda: world.pass_time(-5.0))
    assert store.read(KEY, soon()).holdings == ()


def test_whoever_did_not_look_does_so_once_the_clock_has_stepped_back(
    world: MovedWorld, store: PostgresStore
) -> None:
    store.give(KEY, (first := taken(store, SHARED)).claim, first.token, soon())
    outcome = between(store, SHARED, lambda: world.pass_time(-5.0), recalls=True)
    assert isinstance(outcome, Granted)
    assert outcome.token > first.token


def test_a_permit_that_nobody_else_wants_is_one_request_each_way(store: PostgresStore) -> None:
    store.give(KEY, (first := taken(store, SHARED)).claim, first.token, soon())
    claim, dialect = new_claim(), store.operations.dialect
    granted, asked = carried_out(store, dialect.take(KEY, claim, SHARED))
    assert isinstance(granted, Granted)
    released, asked_again = carried_out(store, dialect.give(KEY, claim, granted.token))
    assert released == Released()
    assert (len(asked), len(asked_again)) == (1, 1)
    assert store.read(KEY, soon()).holdings == ()


def test_the_lease_of_one_that_stood_in_line_is_given_back_by_one_statement(
    store: PostgresStore,
) -> None:
    holder, claim, ask = taken(store), new_claim(), Ask(10.0, "b", queue=Queue(5.0))
    dialect = store.operations.dialect
    for _ in range(2):
        carried_out(store, dialect.take(KEY, claim, ask))
    store.give(KEY, holder.claim, holder.token, soon())
    granted, _ = carried_out(store, dialect.take(KEY, claim, ask))
    assert isinstance(granted, Granted)
    released, asked = carried_out(store, dialect.give(KEY, claim, granted.token))
    assert released == Released()
    assert [b"give" in request for request in asked] == [True]


def test_what_was_refused_without_a_look_is_looked_at(
    store: PostgresStore, other: PostgresStore
) -> None:
    full = taken(store, SHARED)
    other.give(KEY, full.claim, full.token, soon())
    taken(store, SHARED)


def test_a_release_tells_those_who_joined_since_its_grant(
    store: PostgresStore, other: PostgresStore
) -> None:
    claim, ask = new_claim(), replace(SHARED, queue=Queue(5.0, fair=True))
    holder = taken(store, SHARED)
    assert isinstance(other.take(KEY, claim, ask, soon()), Queued)
    store.give(KEY, holder.claim, holder.token, soon(), parting=Parting(shared=True))
    refused = store.take(KEY, new_claim(), SHARED, soon())
    assert isinstance(refused, Refused)
    assert refused.reason == "turn"


def test_who_joins_while_another_decides_is_not_lost(store: PostgresStore) -> None:
    claim, queue = new_claim(), Queue(5.0, fair=True)
    holder = taken(store)

    def joins() -> None:
        assert isinstance(store.take(KEY, claim, Ask(10.0, "b", queue=queue), soon()), Refused)

    assert isinstance(between(store, Ask(10.0, "c", candidacy=9.0), joins), Refused)
    store.give(KEY, holder.claim, holder.token, soon())
    refused = store.take(KEY, new_claim(), ALONE, soon())
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.holders[0].holder) == ("turn", "b")


@pytest.mark.parametrize("asks", [1, 2])
def test_with_a_release_the_turn_of_the_first_begins_whether_it_has_just_joined_or_not(
    world: MovedWorld, store: PostgresStore, asks: int
) -> None:
    holder = store.take(KEY, new_claim(), Ask(100.0, "me"), soon())
    assert isinstance(holder, Granted)
    claim, ask = new_claim(), Ask(10.0, "b", queue=Queue(2.0, fair=True))
    for _ in range(asks):  # the second one moves it from beside the record into it
        assert isinstance(store.take(KEY, claim, ask, soon()), Refused)
    store.give(KEY, holder.claim, holder.token, soon())
    assert isinstance(store.take(KEY, new_claim(), ALONE, soon()), Refused)
    world.pass_time(2.5)
    taken(store)


# -- what cannot be read ---------------------------------------------------------------------------


def _texts() -> dict[str, str]:
    text = encoded(NOTHING._replace(changes=7)).decode()
    return {
        "of something else": "junk",
        "of another format": text.replace("incumbent1", "incumbent2"),
        "that was cut short": text[:-3],
        "that was edited": text.replace('"changes":7', '"changes":8'),
    }


@pytest.mark.parametrize("which", _texts())
def test_a_record_that_cannot_be_read_is_neither_granted_nor_overwritten(
    world: MovedWorld, store: PostgresStore, which: str
) -> None:
    store.give(KEY, (first := taken(store)).claim, first.token, soon())
    text = _texts()[which]
    world.server.psql(f"update incumbent.record set rest = '{text}'", world.database)
    asked: list[Callable[[], object]] = [
        lambda: store.take(KEY, new_claim(), ALONE, soon()),
        lambda: store.take(KEY, new_claim(), SHARED, soon()),
        lambda: store.give(KEY, new_claim(), None, soon()),
        lambda: store.put(KEY, "f", b"x", None, soon()),
        lambda: store.read(KEY, soon()),
    ]
    for ask in asked:
        with pytest.raises(StoreUnavailable, match="the record of default/job") as caught:
            ask()
        assert caught.value.permanent
    left = world.server.psql("select rest from incumbent.record", world.database)
    assert left == [(text,)]


def test_a_field_that_cannot_be_read_is_not_overwritten(
    world: MovedWorld, store: PostgresStore
) -> None:
    store.put(KEY, "f", b"x", None, soon())
    world.server.psql("update incumbent.beside set value = 'junk'", world.database)
    for ask in (lambda: store.put(KEY, "f", b"y", None, soon()), lambda: store.read(KEY, soon())):
        with pytest.raises(StoreUnavailable, match="the field f of default/job"):
            ask()
    # The name itself is another matter.
    taken(store)
