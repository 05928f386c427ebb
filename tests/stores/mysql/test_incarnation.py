"""Another server, a copy, a loaded dump: a new incarnation, which grants nothing at first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Gone, Granted, Released, Renewed
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.pooled_registers import PooledStore
from tests import tiers
from tests.stores.mysql.world import (
    ASK,
    Clock,
    Party,
    aged,
    make_tables,
    new_claim,
    new_database,
    party,
    patiently,
    soon,
)
from tests.support.mariadb import MariaServer
from tests.support.servers import free_port
from tests.support.waiting import eventually


def test_new_tables_grant_nothing_for_the_longest_ttl_that_somebody_may_believe_in(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    with party(maria_server.url_of(database), "") as one:
        with pytest.raises(StoreUnavailable, match="started less than a second ago") as caught:
            one.take()
        left = caught.value.retry_after
        assert left is not None
        assert TTL_DEFAULT - 5 < left <= TTL_DEFAULT
        aged(maria_server, database)
        one.store.close()
        one.take()


@pytest.mark.left(tiers.LONG)
def test_leases_outlive_a_server_that_was_killed(own_maria: MariaServer) -> None:
    with party(own_maria.url_of(new_database(own_maria))) as one:
        granted = one.take()
        own_maria.restart()
        assert patiently(lambda: one.store.renew([one.renewal(granted)], soon())) == [Renewed()]
        assert one.refused().holders[0].token == granted.token
        own_maria.restart(graceful=True)
        given = patiently(lambda: one.store.give(one.key, one.claim, granted.token, soon()))
        assert given == Released()


@contextmanager
def copied(server: MariaServer, *options: str) -> Iterator[MariaServer]:
    """A second server with what the first one has on its disk, which is shut down for it."""
    server.shut_down()
    with MariaServer(options, copy_of=server) as copy:
        server.start()
        yield copy


def test_a_copy_elsewhere_is_a_new_incarnation(own_maria: MariaServer) -> None:
    database = new_database(own_maria)
    with party(own_maria.url_of(database)) as one:
        granted = patiently(one.take)
        free = one.key._replace(name="free")
        for key in (free, free):  # the second take of a name is the quick one
            claim = new_claim()
            outcome = one.store.take(key, claim, ASK, soon())
            assert isinstance(outcome, Granted)
            one.store.give(key, claim, outcome.token, soon())
        with copied(own_maria) as copy, party(copy.url_of(database), "") as two:
            two.key = one.key
            for key in (one.key, free, one.key._replace(name="never-seen")):
                with pytest.raises(StoreUnavailable, match="started less than a second ago"):
                    two.store.take(key, new_claim(), ASK, soon())
            # What was granted elsewhere is not renewed here, and is Gone.
            assert two.store.renew([one.renewal(granted)], soon()) == [Gone("store_restarted")]
            aged(copy, database)
            two.store.close()
            two.store.give(one.key, one.claim, None, soon())
            assert two.take(new_claim()).token > granted.token
        assert patiently(lambda: one.store.renew([one.renewal(granted)], soon())) == [Renewed()]


def test_a_longer_ttl_than_usual_is_waited_for_after_a_failover(own_maria: MariaServer) -> None:
    database = new_database(own_maria)
    with party(own_maria.url_of(database)) as one:
        granted = one.take(ask=replace(ASK, ttl=100.0))
        one.store.renew([one.renewal(granted, ttl=300.0)], soon())
        with copied(own_maria) as copy, party(copy.url_of(database), "") as two:
            with pytest.raises(StoreUnavailable) as caught:
                two.take()
            assert caught.value.retry_after is not None
            assert 200 < caught.value.retry_after <= 300


def test_a_connection_that_a_proxy_leads_to_another_server_writes_nothing_there(
    own_maria: MariaServer,
) -> None:
    """Its requests name the incarnation, and the server compares itself with it."""
    database = new_database(own_maria)
    with party(own_maria.url_of(database)) as one:
        granted = one.take_and_use()
        wire = one.store.operations.idle[0]  # type: ignore[attr-defined]
        wire.facts = wire.facts._replace(here="another 1 1 1")
        # The renewal hits no row, is looked at anew, and then it is done with what is true.
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        assert wire.facts.here != "another 1 1 1"


def test_a_dump_that_is_loaded_is_a_new_incarnation_within_seconds(
    own_maria: MariaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("incumbent.stores.pooled_registers.LOOK_EVERY", 0.2)
    database = new_database(own_maria)
    with party(own_maria.url_of(database)) as one:
        one.take()
        kept = own_maria.sql("SELECT * FROM incumbent_marker", database)
        rows = own_maria.sql("SELECT * FROM incumbent_lease", database)
        epoch = kept[0][2]
        time.sleep(1.1)  # a table's time of creation is in seconds
        load(own_maria, database, {"incumbent_marker": kept, "incumbent_lease": rows})

        def another() -> bool:
            outcome = one.store.take(one.key._replace(name="other"), new_claim(), ASK, soon())
            assert isinstance(outcome, Granted)
            return bool(outcome.epoch != epoch)

        eventually(another)
        marked = "SELECT DISTINCT epoch=id FROM incumbent_lease,incumbent_marker"
        assert own_maria.sql(marked, database) == ((1,),)
    with party(own_maria.url_of(database), "") as two, pytest.raises(StoreUnavailable):
        two.take()


def load(
    server: MariaServer, database: str, tables: dict[str, tuple[tuple[object, ...], ...]]
) -> None:
    """What mysqldump writes: the tables are dropped and made, and then filled."""
    for table in ("incumbent_lease", "incumbent_beside", "incumbent_marker"):
        server.sql(f"DROP TABLE {table}", database)
    make_tables(server.url_of(database))
    with server.connect(database) as connection, connection.cursor() as cursor:
        for table, rows in tables.items():
            for row in rows:
                places = ",".join(["%s"] * len(row))
                cursor.execute(f"INSERT INTO {table} VALUES ({places})", row)


def test_a_record_that_was_restored_alone_is_granted_to_nobody(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    here.take_and_use()
    maria_server.sql("UPDATE incumbent_lease SET epoch='of another time'", database)
    with pytest.raises(StoreUnavailable, match=str(here.key)) as caught:
        here.store.take(here.key, new_claim(), ASK, soon())
    assert caught.value.permanent


def test_tokens_of_a_new_incarnation_are_above_those_that_were_lost(
    here: Party, maria_server: MariaServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost ones were granted by a server whose clock was ahead."""
    moved = Clock(monkeypatch)
    moved.shift = 30_000_000
    first = here.take()
    here.store.give(here.key, here.claim, first.token, soon())
    moved.shift = 0
    maria_server.sql("DELETE FROM incumbent_lease", database)
    maria_server.sql("UPDATE incumbent_marker SET place='another 1 1 1'", database)
    here.store.close()
    assert here.take(new_claim()).token > first.token


def test_a_store_whose_data_are_lost_goes_on_a_minute_ahead_of_the_clock(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    before = int(time.time() * 1e6)
    token = here.take().token
    assert before + 60_000_000 < token <= int(time.time() * 1e6) + 60_000_001
    here.store.give(here.key, here.claim, token, soon())
    for table in ("lease", "marker"):
        maria_server.sql(f"DELETE FROM incumbent_{table}", database)
    here.store.close()
    assert here.take(new_claim()).token > token


def test_a_lead_over_the_clock_does_not_add_up_over_incarnations(
    here: Party, maria_server: MariaServer, database: str
) -> None:
    token = 0
    for _ in range(5):
        maria_server.sql("UPDATE incumbent_marker SET place='another 1 1 1'", database)
        here.store.close()
        token = here.take().token
        here.store.give(here.key, here.claim, token, soon())
    assert token <= int(time.time() * 1e6) + 60_000_100


# -- replicas --------------------------------------------------------------------------------------


@pytest.mark.left(tiers.LONG)
def test_a_replica_is_refused_until_it_is_promoted_and_then_waits(own_maria: MariaServer) -> None:
    database = new_database(own_maria)
    with own_maria.replica() as replica:
        urls = f"mysql://root@127.0.0.1:{replica.port},127.0.0.1:{own_maria.port}/{database}"
        with party(urls) as one:
            granted = one.take()
            eventually(lambda: replica.sql("SELECT claim FROM incumbent_lease", database), 20.0)
            with party(replica.url_of(database)) as two, pytest.raises(StoreUnavailable) as caught:
                two.take()
            assert "read-only" in str(caught.value)
            assert not caught.value.permanent  # it may be promoted
            own_maria.kill()
            replica.promote()
            outcome = patiently(lambda: one.store.renew([one.renewal(granted)], soon()))
            assert outcome == [Gone("store_restarted")]
            one.store.give(one.key, one.claim, None, soon())
            assert one.take(new_claim()).token > granted.token


def test_a_server_that_becomes_read_only_grants_nothing_more(own_maria: MariaServer) -> None:
    """Also to a user who may write all the same, as root may."""
    with party(own_maria.url_of(new_database(own_maria))) as one:
        granted = one.take_and_use()
        own_maria.set("read_only=1")
        for ask in (
            lambda: one.store.renew([one.renewal(granted)], soon()),
            lambda: one.store.give(one.key, one.claim, granted.token, soon()),
            lambda: one.store.take(one.key._replace(name="x"), new_claim(), ASK, soon()),
        ):
            with pytest.raises(StoreUnavailable, match="read-only"):
                ask()
        own_maria.set("read_only=0")
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


def test_the_first_host_that_is_away_is_passed_over_and_asked_last_then(
    here: Party, maria_server: MariaServer
) -> None:
    places = f"127.0.0.1:{free_port()},127.0.0.1:{maria_server.port}"
    database = here.engine.url.rpartition("/")[2]
    with party(f"mariadb://root@{places}/{database}") as one:
        one.take()
        assert isinstance(one.store, PooledStore)
        assert one.store.operations.places[0].port == maria_server.port
