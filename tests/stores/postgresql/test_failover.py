"""Standbys: never asked for a lease, found past, and what a promotion means."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Gone, Granted, Renewed
from incumbent.policy import TTL_DEFAULT
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.postgresql.world import (
    Party,
    answers_within,
    new_claim,
    new_database,
    party,
    patiently,
    soon,
)
from tests.support.postgresql import PostgresServer
from tests.support.servers import free_port
from tests.support.waiting import eventually

Pair = tuple[PostgresServer, PostgresServer, str]
"""A primary, its standby, and a database on both."""


@contextmanager
def made_pair() -> Iterator[Pair]:
    with PostgresServer() as primary:
        database = new_database(primary)
        with primary.standby() as standby:
            standby.caught_up_with(primary)
            yield primary, standby, database


@pytest.fixture
def pair() -> Iterator[Pair]:
    """To kill and to promote."""
    with made_pair() as made:
        yield made


@pytest.fixture(scope="module")
def lasting() -> Iterator[Pair]:
    """One that stays as it is."""
    with made_pair() as made:
        yield made


def hosts(database: str, *ports: int) -> str:
    return f"postgresql://postgres@{','.join(f'127.0.0.1:{port}' for port in ports)}/{database}"


def test_a_standby_alone_is_refused_with_what_to_do(lasting: Pair) -> None:
    _, standby, database = lasting
    with party(standby.url_of(database)) as one:
        for how in ("sync", "async"):
            with pytest.raises(StoreUnavailable, match=r"read-only|standby") as caught:
                one.take() if how == "sync" else asyncio.run(one.take_async())
            assert "primary" in str(caught.value)
            assert not caught.value.permanent  # it may be promoted
    done = incumbent("-s", standby.url_of(database), "run", "x", "--", "true")
    assert done.returncode == 69, done.stderr
    assert "primary" in done.stderr


def test_a_primary_set_to_read_only_is_refused(own_postgres: PostgresServer) -> None:
    database = new_database(own_postgres)
    with party(own_postgres.url_of(database)) as one:
        granted = one.take()
        own_postgres.psql(f"alter database {database} set default_transaction_read_only = on")
        # Sessions that are there keep what they began with.
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        one.store.close()
    with party(own_postgres.url_of(database)) as two, pytest.raises(StoreUnavailable, match="only"):
        two.take()


@pytest.mark.left(tiers.SIDES, "sync-standby *", "async-primary *")
@pytest.mark.parametrize("order", ["primary first", "standby first"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_of_several_hosts_the_primary_is_found(lasting: Pair, order: str, how: str) -> None:
    primary, standby, database = lasting
    ports = (primary.port, standby.port)
    with party(hosts(database, *(ports if order == "primary first" else ports[::-1]))) as one:
        granted = one.take() if how == "sync" else asyncio.run(one.take_async())
    assert granted.token > 0
    held = f"select count(*) from incumbent.record where claim = '{granted.claim}'"
    assert primary.psql(held, database) == [(1,)]


def test_hosts_that_are_down_are_passed_over(lasting: Pair) -> None:
    primary, _, database = lasting
    with party(hosts(database, free_port(), primary.port)) as one, answers_within(3.0):
        one.take(within=3.0)


@pytest.mark.left(tiers.SIDES, "async")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_first_host_that_is_frozen_leaves_time_for_the_second(lasting: Pair, how: str) -> None:
    primary, standby, database = lasting
    with (
        frozen(standby),
        party(hosts(database, standby.port, primary.port)) as one,
        answers_within(3.0),
    ):
        if how == "sync":
            one.take(within=3.0)
        else:
            asyncio.run(one.take_async(within=3.0))


@contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


def fail_over(pair: Pair, *, freeze: bool) -> None:
    primary, standby, _ = pair
    standby.caught_up_with(primary)
    primary.freeze() if freeze else primary.kill()
    standby.promote()


@pytest.mark.left(tiers.CRASHES, "killed")
@pytest.mark.parametrize("freeze", [False, True], ids=["killed", "frozen"])
def test_a_promotion_ends_what_was_believed_and_grants_nothing_for_the_restart_wait(
    pair: Pair, freeze: bool
) -> None:
    primary, standby, database = pair
    url = hosts(database, primary.port, standby.port)
    with party(url, "restart_wait=1.5") as one, party(url, "") as careful:
        ask = Ask(1.5, "h")
        granted = waited_for(one, ask)
        fail_over(pair, freeze=freeze)
        gone = patiently(lambda: one.store.renew([one.renewal(granted)], soon(1.5)))
        assert gone == [Gone("store_restarted")]
        careful.key = one.key
        with pytest.raises(StoreUnavailable, match="restart_wait") as caught:
            patiently_refused(careful, ask)
        assert caught.value.retry_after is not None
        assert 5 < caught.value.retry_after <= TTL_DEFAULT
        again = waited_for(one, ask)
        assert again.token > granted.token
        if freeze:
            primary.thaw()


def patiently_refused(one: Party, ask: Ask) -> None:
    """Connect, then ask once."""
    patiently(lambda: one.store.read(one.key, soon(1.5)))
    one.store.take(one.key, new_claim(), ask, soon(10))


def waited_for(one: Party, ask: Ask) -> Granted:
    """A grant once the wait of a young database is over."""
    outcome = patiently(lambda: one.store.take(one.key, one.claim, ask, soon(1.5)))
    assert isinstance(outcome, Granted), outcome
    return outcome


@pytest.mark.left(tiers.LONG)
def test_an_old_primary_that_comes_back_beside_the_new_one_is_named_in_the_docs(
    pair: Pair,
) -> None:
    """Split brain is not ours to mend: both take writes, and each grants by itself.

    What holds all the same: unless told otherwise the promoted one waits for the longest ttl that
    is believed, so the old one's holders, who can no longer renew if clients reach the new one
    only, were over by then.
    """
    primary, standby, database = pair
    with party(primary.url_of(database)) as old, party(standby.url_of(database)) as new:
        ask = Ask(2.0, "h")
        before = old.take(ask=ask)
        standby.caught_up_with(primary)
        standby.promote()
        new.key = old.key
        found: list[Granted] = []

        def the_new_one_grants() -> bool:
            assert old.store.renew([old.renewal(before, 2.0)], soon()) == [Renewed()]
            outcome = patiently(lambda: new.store.take(new.key, new.claim, ask, soon()))
            found.extend([outcome] if isinstance(outcome, Granted) else [])
            return bool(found)

        eventually(the_new_one_grants)
        assert found[0].token > before.token
        # Fencing tells them apart wherever the tokens are compared.
        assert old.store.renew([old.renewal(before, 2.0)], soon()) == [Renewed()]
