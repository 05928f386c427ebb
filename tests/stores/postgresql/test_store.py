"""What `postgresql://` does on a real server beyond the contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

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
    Slot,
    Stored,
)
from incumbent.stores.postgresql import open_postgresql
from incumbent.stores.postgresql.engine import PostgresEngine, PostgresStore, schema
from tests.stores.postgresql.world import MovedWorld, moved_schema
from tests.support.pace import WOKEN, took
from tests.support.postgresql import PostgresServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

_KEY = Key("default", "job")
_ASK = Ask(30.0, "somebody")
_ONE, _TWO = "1" * 32, "2" * 32

HERE = "datname = current_database()"
Run = Callable[[str], list[tuple[Any, ...]]]


def soon(seconds: float = 5.0) -> float:
    return clock.now() + seconds


def engine_of(url: str, options: str = "?restart_wait=0") -> PostgresEngine:
    engine = open_postgresql(f"{url}{options}")
    assert isinstance(engine, PostgresEngine)
    return engine


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    name = postgres_server.new_database()
    postgres_server.psql(schema(), name)
    return name


@pytest.fixture
def run(postgres_server: PostgresServer, database: str) -> Run:
    return lambda sql: postgres_server.psql(sql, database)


@pytest.fixture
def store(postgres_server: PostgresServer, database: str) -> Iterator[PostgresStore]:
    store = engine_of(postgres_server.url_of(database)).store()
    yield store
    store.close()


Moved = tuple[MovedWorld, PostgresStore]


@pytest.fixture
def moved(postgres_server: PostgresServer) -> Iterator[Moved]:
    """A store whose leases are counted by a clock that a test moves."""
    world = MovedWorld(postgres_server, 1_800_000_000.0)
    store = world.engine.store()
    assert isinstance(store, PostgresStore)
    yield world, store
    store.close()


def granted(store: PostgresStore, claim: str = _ONE, key: Key = _KEY, ask: Ask = _ASK) -> Granted:
    outcome = store.take(key, claim, ask, soon())
    assert isinstance(outcome, Granted), outcome
    return outcome


# -- the schema


def test_the_schema_may_be_applied_again_at_any_time(store: PostgresStore, run: Run) -> None:
    grant = granted(store)
    run(schema())
    renewal = Renewal(_KEY, _ONE, grant.token, 30.0, grant.epoch)
    assert store.renew([renewal], soon()) == [Renewed()]


def test_whoever_is_no_superuser_can_make_and_use_the_schema(
    postgres_server: PostgresServer,
) -> None:
    database = postgres_server.new_database()
    role = f"plain_{database}"
    postgres_server.psql(f"create role {role} login")
    postgres_server.psql(f"grant create on database {database} to {role}")
    engine = engine_of(postgres_server.url_of(database, role))
    for _ in range(2):
        assert [level for level, _, _ in engine.fix(soon(20))] == ["ok"]
    granted(engine.store())
    assert "error" not in [level for level, _, _ in engine.diagnose(15.0, soon())]
    engine.store().close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("update incumbent.version set format = 2", "stop the instances of the other version"),
        ("delete from incumbent.version", "doctor --fix"),
        ("drop schema incumbent cascade", "doctor --fix"),
    ],
)
def test_a_schema_that_cannot_be_used_is_said_for_good(
    store: PostgresStore, run: Run, change: str, said: str
) -> None:
    run(change)
    with pytest.raises(StoreUnavailable, match=said) as caught:
        store.take(_KEY, _ONE, _ASK, soon())
    assert caught.value.permanent


def test_a_role_with_the_two_grants_of_the_file_can_do_everything_and_nothing_else(
    postgres_server: PostgresServer, database: str, run: Run
) -> None:
    role = f"app_{database}"
    run(f"create role {role} login")
    run(f"grant usage on schema incumbent to {role}")
    run(f"grant execute on all functions in schema incumbent to {role}")
    url = postgres_server.url_of(database, role)
    store = engine_of(url).store()
    slot = Slot("today", 5.0)
    grant = granted(store, ask=Ask(30.0, "a", slot=slot, candidacy=1.0))
    store.put(_KEY, "pause", b"x", None, soon())
    assert isinstance(store.take(_KEY, _TWO, Ask(30.0, "b", candidacy=5.0), soon()), Refused)
    store.wait_change(_KEY, "", soon(0.1))
    assert store.read(_KEY, soon()).seen == store.scan("default", "", soon())[0].seen
    assert store.give(_KEY, _ONE, grant.token, soon(), parting=Parting(slot="today")) == Released()
    store.close()
    with psycopg.connect(url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select * from incumbent.record")


def test_whose_objects_shadow_those_of_the_server_changes_nothing(
    postgres_server: PostgresServer, database: str, run: Run
) -> None:
    run("create schema evil")
    run(
        "create function evil.greatest_(a bigint) returns bigint language sql as 'select 0::bigint'"
    )
    run(
        "create function evil.clock_timestamp() returns timestamptz language sql"
        " as $$select '-infinity'::timestamptz$$"
    )
    run(f"alter database {database} set search_path = evil, public")
    store = engine_of(postgres_server.url_of(database)).store()
    granted(store)
    assert isinstance(store.take(_KEY, _TWO, _ASK, soon()), Refused)
    store.close()


# -- the incarnation


def _url(server: PostgresServer) -> str:
    server.psql(schema())
    return server.url


def test_a_crash_of_one_backend_begins_a_new_epoch(own_postgres: PostgresServer) -> None:
    store = engine_of(_url(own_postgres)).store()
    grant = granted(store)
    own_postgres.crash()
    asked = Renewal(_KEY, _ONE, grant.token, 30.0, grant.epoch)
    assert store.renew([asked], soon()) == [Gone("store_restarted")]
    careful = engine_of(own_postgres.url, "").store()
    with pytest.raises(StoreUnavailable, match="restart_wait") as caught:
        careful.take(_KEY, _TWO, Ask(20.0, "b"), soon())
    assert caught.value.retry_after is not None
    # The holder's 30 s, if the crash left its grant.
    assert 10 < caught.value.retry_after <= 30
    store.close()
    careful.close()


def test_an_orderly_restart_ends_nothing(own_postgres: PostgresServer) -> None:
    store = engine_of(_url(own_postgres)).store()
    grant = granted(store)
    own_postgres.restart(graceful=True)
    asked = Renewal(_KEY, _ONE, grant.token, 30.0, grant.epoch)
    assert store.renew([asked], soon()) == [Renewed()]
    store.close()


def test_a_copy_of_the_data_is_another_store(
    postgres_server: PostgresServer, database: str, store: PostgresStore
) -> None:
    grant = granted(store)
    store.close()
    copy = postgres_server.new_database(database)
    other = engine_of(postgres_server.url_of(copy)).store()
    asked = Renewal(_KEY, _ONE, grant.token, 30.0, grant.epoch)
    assert other.renew([asked], soon()) == [Gone("store_restarted")]
    other.close()


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("take('a/b', 'c', 9000000, 'h', '', 1, 0, NULL, false)", "off"),
        ("renew('e', '{a/b}', '{c}', '{1}', '{1}')", "off"),
        ("give('a/b', 'c', 1)", "off"),
        ("join_line('e', 'a/b', 'c', 'x', 0)", "off"),
        ("swap('[]', false, 0)", "off"),
        ("swap('[]', true, 0)", "on"),
        ("changed('a/b', '', 1000000)", "off"),
    ],
)
def test_only_what_must_survive_a_crash_waits_for_the_disk(
    postgres_server: PostgresServer, database: str, call: str, waits: str
) -> None:
    with psycopg.connect(postgres_server.url_of(database)) as connection:
        connection.execute(f"select incumbent.{call}".encode())
        row = connection.execute("show synchronous_commit").fetchone()
        assert row == (waits,)


# -- many at once


def _locked(server: PostgresServer, database: str) -> psycopg.Connection[Any]:
    operator = psycopg.connect(server.url_of(database))
    operator.execute("select from incumbent.record where key = 'default/job' for update")
    return operator


def _blocked(run: Run, count: int) -> None:
    waiting = f"select count(*) from pg_stat_activity where {HERE} and wait_event_type = 'Lock'"
    eventually(lambda: run(waiting) >= [(count,)])


def test_of_two_that_saw_it_free_one_is_granted(
    postgres_server: PostgresServer, database: str, store: PostgresStore, run: Run
) -> None:
    store.give(_KEY, _ONE, granted(store).token, soon())
    with _locked(postgres_server, database) as operator, ThreadPoolExecutor(2) as pool:
        takes = [pool.submit(store.take, _KEY, claim, _ASK, soon()) for claim in (_ONE, _TWO)]
        _blocked(run, 2)
        operator.commit()
        kinds = sorted(type(take.result()).__name__ for take in takes)
    assert kinds == ["Granted", "Refused"]


def test_a_lock_that_somebody_keeps_is_no_answer_and_ends(
    postgres_server: PostgresServer, database: str, store: PostgresStore
) -> None:
    grant = granted(store)
    with _locked(postgres_server, database) as operator:
        with pytest.raises(StoreUnavailable, match="row locked"):
            store.give(_KEY, _ONE, grant.token, soon())
        operator.rollback()
    assert store.give(_KEY, _ONE, grant.token, soon()) == Released()


def test_who_is_refused_writes_nothing_and_waits_for_nobody(
    postgres_server: PostgresServer, database: str, store: PostgresStore
) -> None:
    granted(store)
    with _locked(postgres_server, database):
        started = clock.now()
        assert isinstance(store.take(_KEY, _TWO, _ASK, soon()), Refused)
        # A statement that waits for the row gets an error after its lock_timeout.
        assert took(started) < 5


def test_batches_in_any_order_do_not_stop_each_other(store: PostgresStore) -> None:
    renewals = []
    for index in range(60):
        key = Key("default", f"n{index}")
        grant = granted(store, key=key)
        renewals.append(Renewal(key, _ONE, grant.token, 30.0, grant.epoch))

    def turn(number: int) -> bool:
        batch = renewals[::-1] if number % 2 else renewals
        return store.renew(batch, soon(20)) == [Renewed()] * len(batch)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(turn, range(40)))


def test_a_lease_twice_in_a_batch_is_renewed_twice(store: PostgresStore) -> None:
    grant = granted(store)
    asked = Renewal(_KEY, _ONE, grant.token, 30.0, grant.epoch)
    assert store.renew([asked, asked], soon()) == [Renewed(), Renewed()]


def test_renewals_of_several_epochs_are_answered_each(store: PostgresStore) -> None:
    grant = granted(store)
    asked = [Renewal(_KEY, _ONE, grant.token, 30.0, it) for it in ("old", grant.epoch, "old")]
    assert store.renew(asked, soon()) == [
        Gone("store_restarted"),
        Renewed(),
        Gone("store_restarted"),
    ]


# -- sessions


def test_a_session_that_somebody_tidied_up_is_used_on(store: PostgresStore, run: Run) -> None:
    grant = granted(store)
    (wire,) = store.operations.idle
    wire._connection.exec_(b"deallocate all")
    assert store.give(_KEY, _ONE, grant.token, soon()) == Released()
    wire._connection.exec_(b"deallocate all")
    granted(store)


def test_an_answer_with_an_error_leaves_the_connection_in_step(
    store: PostgresStore, run: Run
) -> None:
    granted(store)
    run("alter table incumbent.record add constraint no check (holder <> 'x')")
    for claim in (_ONE, _TWO):
        with pytest.raises(StoreUnavailable, match="no"):
            store.take(Key("default", "other"), claim, Ask(9.0, "x"), soon())
    assert len(store.operations.idle) == 1
    assert [it.holder for it in store.read(_KEY, soon()).holdings] == ["somebody"]


def test_who_waits_is_told_and_one_connection_serves_all(store: PostgresStore, run: Run) -> None:
    def wait(key: Key, seen: str) -> float:
        started = clock.now()
        store.wait_change(key, seen, soon(20))
        return took(started)

    other = Key("default", "other")
    grants = {key: granted(store, key=key) for key in (_KEY, other)}
    seen = {key: store.read(key, soon()).seen for key in grants}
    with ThreadPoolExecutor(6) as pool:
        first = [pool.submit(wait, _KEY, seen[_KEY]) for _ in range(3)]
        second = [pool.submit(wait, other, seen[other]) for _ in range(3)]
        marked = "select count(*) from incumbent.record where waited > incumbent.clock()"
        eventually(lambda: run(marked) == [(2,)])
        time.sleep(0.1)
        listening = (
            f"select count(*) from pg_stat_activity where {HERE} and query = 'LISTEN incumbent'"
        )
        assert run(listening) == [(1,)]
        assert not any(it.done() for it in first + second)
        for key, waiters in ((_KEY, first), (other, second)):
            started = clock.now()
            store.give(key, _ONE, grants[key].token, soon())
            for waiter in waiters:
                waiter.result()
            assert took(started) < WOKEN


def test_who_waits_outlives_the_loss_of_the_connection_that_listens(
    store: PostgresStore, run: Run
) -> None:
    grant = granted(store)
    seen = store.read(_KEY, soon()).seen
    listening = f"from pg_stat_activity where {HERE} and query = 'LISTEN incumbent'"
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            waiter = pool.submit(store.wait_change, _KEY, seen, soon(20))
            eventually(lambda: run(f"select count(*) {listening}") == [(1,)])
            run(f"select pg_terminate_backend(pid) {listening}")
            waiter.result(15)
        waiter = pool.submit(store.wait_change, _KEY, seen, soon(20))
        eventually(lambda: run(f"select count(*) {listening}") == [(1,)])
        store.give(_KEY, _ONE, grant.token, soon())
        waiter.result(15)


def test_who_waits_for_a_slot_is_told_when_it_is_given_back_after_the_lease_ended(
    store: PostgresStore, run: Run
) -> None:
    ask = Ask(30.0, "a", slot=Slot("today", 60.0))
    grant = granted(store, ask=ask)
    store.give(_KEY, _ONE, grant.token, soon())
    refused = store.take(_KEY, _TWO, ask, soon())
    assert isinstance(refused, Refused)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(store.wait_change, _KEY, refused.seen, soon(20))
        marked = "select count(*) from incumbent.record where waited > incumbent.clock()"
        eventually(lambda: run(marked) == [(1,)])
        assert store.give(_KEY, _ONE, None, soon(), parting=Parting(slot="today")) == Gone()
        waiter.result(15)


# -- upkeep


def test_records_are_forgotten_a_few_at_a_time_but_never_what_still_says_something(
    moved: Moved,
) -> None:
    world, store = moved
    brief = Ask(10.0, "a", keep_record=10.0)
    for index in range(100):
        granted(store, key=Key("old", f"n{index}"), ask=brief)
    granted(store, key=Key("old", "slot"), ask=Ask(10.0, "a", slot=Slot("s", 9e6), keep_record=1.0))
    store.put(Key("old", "field"), "state", b"x", None, soon())
    run = "select incumbent.sweep()"
    assert world.server.psql(run, world.database) == [(0,)]
    world.pass_time(4 * 86_400)
    forgotten = [world.server.psql(run, world.database)[0][0] for _ in range(3)]
    assert (sum(forgotten), max(forgotten) <= 64, forgotten[2]) == (100, True, 0)
    left = store.scan("old", "", soon())
    assert [record.key.name for record in left] == ["field", "slot"]


def test_a_forgotten_records_next_token_is_larger(moved: Moved) -> None:
    world, store = moved
    first = granted(store, ask=Ask(10.0, "a", keep_record=1.0))
    world.pass_time(4 * 86_400)
    world.server.psql("select incumbent.sweep()", world.database)
    assert store.scan("default", "", soon()) == ()
    assert granted(store).token > first.token


def test_tokens_grow_though_the_clock_was_set_back(moved: Moved) -> None:
    world, store = moved
    first = granted(store)
    assert isinstance(store.give(_KEY, first.claim, first.token, soon()), Released)
    world.pass_time(-3600.0)
    assert granted(store).token > first.token


@pytest.mark.parametrize("what_comes", ["a take", "a field", "a claim that is given up"])
def test_tokens_grow_over_what_was_forgotten_though_the_clock_was_set_back(
    moved: Moved, what_comes: str
) -> None:
    world, store = moved
    first = granted(store, ask=Ask(10.0, "a", keep_record=1.0))
    world.pass_time(4 * 86_400)
    world.server.psql("select incumbent.sweep()", world.database)
    world.pass_time(-30 * 86_400)
    if what_comes == "a field":
        store.put(_KEY, "state", b"x", None, soon())
    elif what_comes == "a claim that is given up":
        store.give(_KEY, _TWO, None, soon())
    assert granted(store).token > first.token


@pytest.mark.parametrize("what_comes", ["a take", "a field", "a claim that is given up"])
def test_tokens_grow_over_a_record_that_is_forgotten_at_the_same_moment(
    postgres_server: PostgresServer, database: str, store: PostgresStore, run: Run, what_comes: str
) -> None:
    store.give(_KEY, _ONE, granted(store).token, soon())
    ahead = 9_000_000_000_000_000
    ask: dict[str, Callable[[], object]] = {
        "a take": lambda: granted(store),
        "a field": lambda: store.put(_KEY, "state", b"x", None, soon()),
        "a claim that is given up": lambda: store.give(_KEY, _TWO, None, soon()),
    }
    with (
        psycopg.connect(postgres_server.url_of(database)) as sweeper,
        ThreadPoolExecutor(1) as pool,
    ):
        sweeper.execute("delete from incumbent.record")
        sweeper.execute(f"update incumbent.forgotten set highest = {ahead}".encode())
        coming = pool.submit(ask[what_comes])
        _blocked(run, 1)
        sweeper.commit()
        coming.result()
    assert run(f"select token >= {ahead} from incumbent.record") == [(True,)]


def test_without_the_highest_forgotten_token_no_record_begins_until_the_schema_is_mended(
    store: PostgresStore, run: Run
) -> None:
    granted(store)
    run("delete from incumbent.forgotten")
    other = Key("default", "other")
    asked: list[Callable[[], object]] = [
        lambda: store.take(other, _ONE, _ASK, soon()),
        lambda: store.put(other, "state", b"x", None, soon()),
        lambda: store.give(other, _TWO, None, soon()),
    ]
    for ask in asked:
        with pytest.raises(StoreUnavailable, match="doctor --fix"):
            ask()
    run(schema())
    granted(store, key=other)


def test_a_new_epoch_begins_without_the_highest_forgotten_token_too(
    store: PostgresStore, run: Run
) -> None:
    first = granted(store)
    run("delete from incumbent.forgotten; delete from incumbent.epoch")
    second = granted(store, key=Key("default", "other"))
    assert second.token > first.token
    assert run("select highest from incumbent.forgotten") == [(second.token - 1,)]


# As a promotion: crash recovery empties the epoch, and the newest commits may be missing.
PROMOTED = "truncate incumbent.epoch; delete from incumbent.record"


def test_tokens_grow_over_promotions_to_servers_with_slower_clocks_that_lack_the_last_grants(
    moved: Moved,
) -> None:
    world, store = moved
    tokens = [granted(store).token]
    versions = []
    for behind in (20.0, 25.0, -45.0, 59.0):  # a fleet whose clocks are up to a minute apart
        stored = store.put(_KEY, "state", b"x", None, soon())
        assert isinstance(stored, Stored)
        versions.append(stored.version)
        world.server.psql(PROMOTED, world.database)
        world.server.psql("delete from incumbent.beside", world.database)
        world.pass_time(1.0 - behind)
        tokens.append(granted(store).token)
    assert tokens == sorted(set(tokens))
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("behind", [0.0, 20.0, 59.0])
def test_tokens_grow_over_a_promotion_though_the_clock_is_behind_by_nearly_a_minute(
    moved: Moved, behind: float
) -> None:
    """Long after the last epoch began, so that tokens are those of the clock."""
    world, store = moved
    world.pass_time(600.0)
    last = granted(store).token
    assert last == 1_800_000_600_000_000
    world.server.psql(PROMOTED, world.database)
    world.pass_time(0.001 - behind)
    assert granted(store).token > last


def test_tokens_are_those_of_the_clock_again_a_minute_after_each_epoch(
    moved: Moved,
) -> None:
    world, store = moved
    tokens = []
    for _ in range(4):
        world.server.psql(PROMOTED, world.database)
        tokens.append(granted(store).token)
        store.give(_KEY, _ONE, tokens[-1], soon())
    assert tokens == sorted(set(tokens))
    # However often: a minute ahead, and no more.
    assert 0 < tokens[-1] - 1_800_000_060_000_000 < 100
    world.pass_time(61.0)
    assert granted(store).token == 1_800_000_061_000_000


def test_a_promoted_standby_that_lacks_the_last_epoch_too_grants_larger_tokens(
    moved: Moved,
) -> None:
    """Also where all clocks are right: the epoch before and the new one begin as far ahead."""
    world, store = moved
    granted(store)
    ((replicated,),) = world.server.psql("select highest from incumbent.forgotten", world.database)
    # It crashed, and grants again; of that the standby has nothing.
    world.server.psql(PROMOTED, world.database)
    store.give(_KEY, _ONE, granted(store).token, soon())
    last = granted(store, _TWO)
    lost = f"{PROMOTED}; update incumbent.forgotten set highest = {replicated}"
    world.server.psql(lost, world.database)
    world.pass_time(0.001)
    assert granted(store).token > last.token


def test_tokens_grow_when_the_schema_is_lost_however_often_the_server_crashed_before(
    moved: Moved,
) -> None:
    world, store = moved
    last = 0
    for _ in range(6):
        world.server.psql(PROMOTED, world.database)
        world.pass_time(0.5)
        last = granted(store).token
    world.pass_time(0.001)
    world.server.psql(f"drop schema incumbent cascade; {moved_schema()}", world.database)
    assert granted(store).token > last


def test_a_schema_that_is_applied_again_moves_no_token_ahead(
    store: PostgresStore, run: Run
) -> None:
    granted(store)
    before = run("select floor from incumbent.epoch")
    run(schema())
    assert run("select floor from incumbent.epoch") == before


@pytest.mark.parametrize("what_comes", ["nothing", "a take", "a field"])
def test_a_stale_holder_stays_refused_after_its_record_and_its_fence_were_forgotten(
    moved: Moved, what_comes: str
) -> None:
    world, store = moved
    brief = Ask(10.0, "a", keep_record=1.0)
    stale = granted(store, ask=brief)
    world.pass_time(20.0)
    later = granted(store, _TWO, ask=brief)
    fence = "select incumbent.fence('default/job', {})"
    assert world.server.psql(fence.format(later.token), world.database) == [(True,)]
    world.pass_time(4 * 86_400)
    world.server.psql("select incumbent.sweep()", world.database)
    left = "select count(*) from incumbent.fence"
    assert world.server.psql(left, world.database) == [(0,)]
    if what_comes == "a take":
        newest = granted(store, "3" * 32, ask=brief)
        assert world.server.psql(fence.format(newest.token), world.database) == [(True,)]
    elif what_comes == "a field":
        store.put(_KEY, "state", b"x", None, soon())
    assert world.server.psql(fence.format(stale.token), world.database) == [(False,)]


def test_claims_that_were_given_up_are_forgotten_after_a_minute(
    moved: Moved,
) -> None:
    world, store = moved
    store.give(_KEY, _ONE, None, soon())
    world.pass_time(59.0)
    assert isinstance(store.take(_KEY, _ONE, _ASK, soon()), Refused)
    world.pass_time(2.0)
    granted(store)
    left = "select rest from incumbent.record"
    assert world.server.psql(left, world.database) == [("",)]


# -- connections


def test_many_threads_share_few_connections(
    postgres_server: PostgresServer, database: str, store: PostgresStore, run: Run
) -> None:
    store.give(_KEY, _ONE, granted(store).token, soon())
    with _locked(postgres_server, database) as operator, ThreadPoolExecutor(30) as pool:
        takes = [pool.submit(store.take, _KEY, f"{n:032}", _ASK, soon(20)) for n in range(30)]
        _blocked(run, 10)
        ((used,),) = run(f"select count(*) from pg_stat_activity where {HERE} and query ~ 'take'")
        operator.commit()
        kinds = [type(take.result()).__name__ for take in takes]
    assert used <= 11
    assert sorted(set(kinds)) == ["Granted", "Refused"]
    assert kinds.count("Granted") == 1


def test_a_renewal_does_not_stand_behind_others(
    postgres_server: PostgresServer, database: str, store: PostgresStore, run: Run
) -> None:
    other = Key("default", "other")
    kept = granted(store, key=other)
    store.give(_KEY, _ONE, granted(store).token, soon())
    with _locked(postgres_server, database) as operator, ThreadPoolExecutor(60) as pool:
        takes = [pool.submit(store.take, _KEY, f"{n:032}", _ASK, soon(20)) for n in range(60)]
        _blocked(run, 10)
        asked = Renewal(other, _ONE, kept.token, 30.0, kept.epoch)
        # Each ten of them wait for a second, their lock_timeout.
        assert store.renew([asked], soon(3.0)) == [Renewed()]
        operator.commit()
        assert [type(take.result()) for take in takes].count(Granted) == 1
