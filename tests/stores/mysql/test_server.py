"""What a MariaDB server can do to its clients: never taken for "free", and survived."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Granted, Key, Released, Renewal, Renewed, Stored
from incumbent.net import pool
from incumbent.stores.mysql.errors import ServerError, answered
from incumbent.stores.mysql.wire import MysqlWire, Reply
from tests import tiers
from tests.stores.mysql.world import (
    ASK,
    Clock,
    Party,
    aged,
    answers_within,
    new_claim,
    new_database,
    party,
    patiently,
    soon,
)
from tests.support.mariadb import MariaServer
from tests.support.waiting import eventually


def sessions(server: MariaServer, database: str) -> list[int]:
    asked = f"SELECT id FROM information_schema.processlist WHERE db='{database}'"
    return [number for (number,) in server.sql(asked)]


def end_all(server: MariaServer, database: str, how: str = "CONNECTION") -> None:
    for number in sessions(server, database):
        server.sql(f"KILL {how} {number}")


@contextmanager
def locked(server: MariaServer, database: str, statement: str) -> Iterator[None]:
    """Another client holds locks for as long as this takes."""
    with server.connect(database) as other, other.cursor() as cursor:
        other.autocommit(False)
        cursor.execute(statement)
        yield
        other.rollback()


@pytest.fixture
def asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal for a moment is raised; else it is asked again for as long as there is time."""
    monkeypatch.setattr(pool, "_SOON", 0.0)


# -- sessions that end


@pytest.mark.left(tiers.SIDES, "sync")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_lease_outlives_the_end_of_every_session(
    here: Party, maria_server: MariaServer, database: str, how: str
) -> None:
    async def main() -> None:
        store = here.engine.async_store()
        granted = await here.take_async()
        end_all(maria_server, database)
        assert await store.renew([here.renewal(granted)], soon()) == [Renewed()]
        end_all(maria_server, database)
        assert await store.give(here.key, here.claim, None, soon()) == Released()

    if how == "async":
        asyncio.run(main())
        return
    granted = here.take()
    end_all(maria_server, database)
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]
    end_all(maria_server, database)
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()


@pytest.mark.left(tiers.SIDES)
def test_a_session_that_the_server_ended_for_idling_is_opened_again(
    own_maria: MariaServer,
) -> None:
    own_maria.set("wait_timeout=1")
    with party(own_maria.url_of(new_database(own_maria))) as one:
        granted = one.take()
        time.sleep(1.6)
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


@pytest.mark.left(tiers.SIDES, "QUERY")
@pytest.mark.parametrize("how", ["QUERY", "CONNECTION"])
def test_a_statement_that_an_operator_kills_is_in_doubt_and_was_rolled_back(
    here: Party, maria_server: MariaServer, database: str, how: str
) -> None:
    granted = here.take_and_use()
    row = locked(maria_server, database, "SELECT * FROM incumbent_lease FOR UPDATE")
    with row, ThreadPoolExecutor(1) as pool:
        giving = pool.submit(here.store.give, here.key, here.claim, granted.token, soon())
        asked = (
            f"SELECT id FROM information_schema.processlist WHERE db='{database}'"
            " AND info LIKE 'UPDATE incumbent_lease SET ended%'"
        )
        eventually(lambda: maria_server.sql(asked))
        maria_server.sql(f"KILL {how} {maria_server.sql(asked)[0][0]}")
        # A connection that ends is tried once more, while the row is still locked.
        with pytest.raises((OutcomeUnknown, StoreUnavailable)) as caught:
            giving.result(10)
        assert how == "CONNECTION" or isinstance(caught.value, OutcomeUnknown)
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]


@pytest.mark.left(tiers.SIDES)
def test_a_server_that_shuts_down_and_comes_back_is_used_again(own_maria: MariaServer) -> None:
    with party(own_maria.url_of(new_database(own_maria))) as one:
        granted = one.take()
        own_maria.shut_down()
        with pytest.raises(StoreError):
            one.store.renew([one.renewal(granted)], soon(0.5))
        with answers_within(0.5), pytest.raises(StoreUnavailable):
            one.store.renew([one.renewal(granted)], soon(0.5))
        own_maria.start()
        renewed = patiently(lambda: one.store.renew([one.renewal(granted)], soon()))
        assert renewed == [Renewed()]


def test_a_frozen_server_delays_nobody_and_refuses_what_arrived_too_late(
    own_maria: MariaServer,
) -> None:
    with party(own_maria.url_of(new_database(own_maria))) as one:
        one.store.give(one.key, one.claim, one.take().token, soon())
        own_maria.freeze()
        try:
            with answers_within(1.0), pytest.raises(OutcomeUnknown):
                one.take(within=1.0)
            time.sleep(0.3)
        finally:
            own_maria.thaw()
        eventually(lambda: not sessions(own_maria, one.engine.url.rpartition("/")[2]))
        assert one.store.read(one.key, soon()).holdings == ()


# -- what is locked


@pytest.mark.usefixtures("asked_once")
def test_a_row_that_another_client_keeps_locked_is_said_and_nothing_was_done(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    granted = here.take_and_use()
    with locked(maria_server, database, "SELECT * FROM incumbent_lease FOR UPDATE"):
        with pytest.raises(StoreUnavailable, match="locked") as caught:
            here.store.give(here.key, here.claim, granted.token, soon(10))
        assert str(here.key) in str(caught.value)
        assert caught.value.retry_after
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()


@pytest.mark.left(tiers.SIDES)
def test_a_row_that_is_locked_for_a_moment_is_waited_for(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    granted = here.take(ask=replace(ASK, ttl=60.0))
    with ThreadPoolExecutor(1) as pool:
        with locked(maria_server, database, "SELECT * FROM incumbent_lease FOR UPDATE"):
            giving = pool.submit(here.store.give, here.key, here.claim, granted.token, soon(40))
            time.sleep(1.2)
        assert giving.result(60) == Released()


@pytest.mark.usefixtures("asked_once")
def test_a_transaction_that_fails_in_the_middle_leaves_nothing_locked_and_nothing_half_done(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    granted = here.take()
    here.store.put(here.key, "state", b"1", None, soon())
    with party(maria_server.url_of(database)) as other:
        other.store.read(here.key, soon())
        with locked(maria_server, database, "SELECT * FROM incumbent_beside FOR UPDATE"):
            with pytest.raises(StoreUnavailable, match="locked"):
                here.store.put(here.key, "state", b"2", None, soon(10))
            assert other.store.renew([here.renewal(granted)], soon()) == [Renewed()]
    field = here.store.read(here.key, soon()).fields["state"]
    assert field.value == b"1"
    assert isinstance(here.store.put(here.key, "state", b"3", None, soon()), Stored)


def test_a_take_that_waited_for_a_locked_row_until_its_time_was_over_is_not_carried_out(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    here.store.give(here.key, here.claim, here.take().token, soon())
    with locked(maria_server, database, "SELECT * FROM incumbent_lease FOR UPDATE"):
        with pytest.raises(StoreError):
            here.take(within=0.4)
        time.sleep(0.2)
    eventually(lambda: len(sessions(maria_server, database)) == 0)
    assert here.store.read(here.key, soon()).holdings == ()


def test_tokens_and_versions_grow_though_the_clock_was_set_back(
    here: Party, maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = Clock(monkeypatch)
    here.take_and_use()
    aged(maria_server, database)
    here.store.close()
    here.store.give(here.key, here.claim, None, soon())
    here.key = here.key._replace(name="another")
    first = here.take_and_use()
    field = here.store.put(here.key, "state", b"1", None, soon())
    here.store.give(here.key, here.claim, first.token, soon())
    moved.shift = -3_600_000_000
    here.store.close()
    for _ in range(2):
        claim = new_claim()
        outcome = here.take(claim)
        assert outcome.token > first.token
        first = outcome
        here.store.give(here.key, claim, outcome.token, soon())
    again = here.store.put(here.key, "state", b"2", None, soon())
    assert isinstance(field, Stored)
    assert isinstance(again, Stored)
    assert again.version > field.version


@pytest.mark.left(tiers.SIDES)
@pytest.mark.usefixtures("asked_once")
def test_a_table_that_is_locked_for_a_backup_delays_for_a_second_at_most(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    granted = here.take_and_use()
    with maria_server.connect(database) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES incumbent_lease READ")
        with pytest.raises(StoreUnavailable, match="locked"):
            here.store.renew([here.renewal(granted)], soon(10))
        cursor.execute("UNLOCK TABLES")
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]


@pytest.mark.usefixtures("asked_once")
def test_renewals_that_one_locked_row_is_among_are_not_all_lost(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    granted = here.take()
    with locked(
        maria_server, database, f"SELECT * FROM incumbent_lease WHERE name='{here.key}' FOR UPDATE"
    ):
        other = here.key._replace(name="free")
        free = here.store.take(other, new_claim(), ASK, soon())
        assert isinstance(free, Granted)
        both = [here.renewal(granted), Renewal(other, free.claim, free.token, 10.0, free.epoch)]
        with pytest.raises(StoreUnavailable):
            here.store.renew(both, soon())
    assert here.store.renew(both, soon()) == [Renewed(), Renewed()]


def test_first_takes_of_many_names_at_once_do_not_deadlock(
    maria_server: MariaServer, database: str
) -> None:
    """Inserts between the same two rows, and several clients at each."""
    with party(maria_server.url_of(database)) as one, party(maria_server.url_of(database)) as two:
        start = threading.Barrier(12)

        def taken(index: int) -> list[bool]:
            found = []
            for turn in range(6):
                start.wait(30)
                key = Key("crowd", f"name-{turn}-{index // 4}")
                side = (one, two)[index % 2].store
                found.append(isinstance(side.take(key, new_claim(), ASK, soon(20)), Granted))
            return found

        with ThreadPoolExecutor(12) as pool:
            granted = list(pool.map(taken, range(12)))
    assert sum(map(sum, granted)) == 6 * 3


# -- what is full, missing or forbidden


@pytest.mark.left(tiers.SIDES)
def test_no_connection_left_is_an_outage_that_passes(own_maria: MariaServer) -> None:
    database = new_database(own_maria)
    own_maria.sql("CREATE USER app@'127.0.0.1'")
    own_maria.sql(f"GRANT ALL ON {database}.* TO app@'127.0.0.1'")
    own_maria.set("max_connections=10")
    taken = [own_maria.connect() for _ in range(10)]
    try:
        with party(own_maria.url_of(database, "app")) as one:
            with pytest.raises(StoreUnavailable, match="no connection left") as caught:
                one.take()
            assert not caught.value.permanent
            assert caught.value.retry_after
    finally:
        for connection in taken:
            connection.close()


def test_a_user_needs_no_more_than_four_rights_on_three_tables(
    own_maria: MariaServer,
) -> None:
    database = new_database(own_maria)
    own_maria.sql("CREATE USER app@'127.0.0.1'")
    for table in ("lease", "beside", "marker"):
        rights = "SELECT, INSERT, UPDATE, DELETE"
        own_maria.sql(f"GRANT {rights} ON {database}.incumbent_{table} TO app@'127.0.0.1'")
    with party(own_maria.url_of(database, "app")) as one:
        granted = one.take()
        one.store.put(one.key, "state", b"1", None, soon())
        one.store.put(one.key, "state", None, None, soon())
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        levels = [level for level, _, _ in one.engine.diagnose(10.0, soon())]
        assert len(levels) > 5
        wire = one.store.operations.idle[0]  # type: ignore[attr-defined]
        one.store.operations.sweep(wire, soon())  # type: ignore[attr-defined]
        own_maria.sql(f"REVOKE UPDATE ON {database}.incumbent_lease FROM app@'127.0.0.1'")
        with pytest.raises(
            StoreUnavailable, match="GRANT SELECT, INSERT, UPDATE, DELETE"
        ) as caught:
            one.store.renew([one.renewal(granted)], soon())
        assert not caught.value.permanent  # it had them before


def test_a_user_who_may_not_come_in_is_told_for_good(
    maria_server: MariaServer, database: str
) -> None:
    for url in (
        maria_server.url_of(database, "nobody9"),
        maria_server.url_of(database, "root:sesame"),
    ):
        with party(url) as one, pytest.raises(StoreUnavailable, match="check the user") as caught:
            one.take()
        assert caught.value.permanent
        assert "sesame" not in str(caught.value)


def test_a_missing_database_is_final(maria_server: MariaServer) -> None:
    with party(maria_server.url_of("nowhere")) as one:
        with pytest.raises(StoreUnavailable, match="CREATE DATABASE") as caught:
            one.take()
        assert caught.value.permanent


# -- the meaning of errors


@pytest.mark.parametrize("code", [1213, 1205, 1290, 1792, 1836, 1040, 1047, 1020, 1114, 1146])
def test_an_error_that_says_that_nothing_was_done_is_no_doubt(code: int) -> None:
    for in_doubt in (True, False):
        found = answered(
            ServerError(code, "said", in_doubt=in_doubt), "mysql://h/d", "", served=True
        )
        assert isinstance(found, StoreUnavailable)
        assert not found.permanent


@pytest.mark.parametrize("code", [1053, 1317, 1927, 1180, 1026, 1105, 3100, 9999])
def test_an_error_that_may_come_after_a_commit_is_a_doubt_about_a_write(code: int) -> None:
    found = answered(ServerError(code, "said", in_doubt=True), "mysql://h/d", "n/a", served=True)
    assert isinstance(found, OutcomeUnknown)
    assert "n/a" in str(found)
    read = answered(ServerError(code, "said", in_doubt=False), "mysql://h/d", "", served=True)
    assert isinstance(read, StoreUnavailable)


@pytest.mark.parametrize("times", [1, 100])
def test_a_commit_that_fails_certification_changed_nothing_and_is_asked_again(
    here: Party, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A node of Galera answers so to the second of two clients at two nodes."""
    here.store.put(here.key, "state", b"1", None, soon())
    left, ask = [times], MysqlWire.ask

    def uncertified(wire: MysqlWire, asked: str, until: float, *, in_doubt: bool) -> list[Reply]:
        if not asked.endswith(";COMMIT") or not left[0]:
            return ask(wire, asked, until, in_doubt=in_doubt)
        left[0] -= 1
        ask(wire, asked.removesuffix("COMMIT") + "ROLLBACK", until, in_doubt=in_doubt)
        wire.unfinished = True
        raise ServerError(1213, "WSREP: certification failed", in_doubt=in_doubt)

    monkeypatch.setattr(MysqlWire, "ask", uncertified)
    if times == 1:
        assert isinstance(here.store.put(here.key, "state", b"2", None, soon()), Stored)
        assert here.store.read(here.key, soon()).fields["state"].value == b"2"
    else:
        monkeypatch.setattr(pool, "_SOON", 0.0)
        with pytest.raises(StoreUnavailable, match="another client was quicker"):
            here.store.put(here.key, "state", b"2", None, soon())
        assert here.store.read(here.key, soon()).fields["state"].value == b"1"


def test_an_error_after_something_was_written_is_a_doubt(
    here: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two renewals one is done; the question which of them is refused."""
    granted = here.take()
    both = [here.renewal(granted), here.renewal(granted._replace(token=granted.token + 1))]
    ask = MysqlWire.ask

    def refused(wire: MysqlWire, asked: str, until: float, *, in_doubt: bool) -> list[Reply]:
        if asked.startswith("SELECT CONCAT_WS"):
            raise ServerError(1205, "a lock wait", in_doubt=in_doubt)
        return ask(wire, asked, until, in_doubt=in_doubt)

    monkeypatch.setattr(MysqlWire, "ask", refused)
    with pytest.raises(OutcomeUnknown, match="a lock wait"):
        here.store.renew(both, soon())


# -- names that nobody needs


def test_names_of_which_nothing_matters_are_forgotten_and_no_others(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    names = {name: here.key._replace(name=name) for name in ("old", "held", "paused", "field")}
    for name, key in names.items():
        claim = new_claim()
        outcome = here.store.take(key, claim, ASK, soon())
        assert isinstance(outcome, Granted)
        if name != "held":
            here.store.give(key, claim, outcome.token, soon())
    here.store.put(names["paused"], "pause", b"{}", None, soon())
    here.store.put(names["field"], "state", b"1", None, soon())
    operations = here.store.operations  # type: ignore[attr-defined]
    operations.sweep(operations.idle[0], soon())
    assert kept(maria_server, database) >= {f"faults/{name}" for name in names}
    maria_server.sql("UPDATE incumbent_lease SET written=1,keep_until=1", database)
    maria_server.sql("UPDATE incumbent_lease SET expires=0 WHERE claim=''", database)
    operations.sweep(operations.idle[0], soon())
    assert kept(maria_server, database) & {f"faults/{name}" for name in names} == {
        f"faults/{name}" for name in names if name != "old"
    }


def kept(server: MariaServer, database: str) -> set[str]:
    return {name for (name,) in server.sql("SELECT name FROM incumbent_lease", database)}


def test_what_is_written_is_not_forgotten_by_a_sweep_that_saw_it_before(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    from incumbent.stores.mysql import statements

    granted = here.take()
    wire = here.store.operations.idle[0]  # type: ignore[attr-defined]
    names = wire.quoted("%s", [str(here.key)])
    wire.ask(statements.forget(wire.facts.on_its_clock(soon()), names), soon(), in_doubt=False)
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]
