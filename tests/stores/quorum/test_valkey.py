"""A quorum of Valkey servers, and one in which Redis and Valkey are mixed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent.model import Ask, Granted, Refused, Released, Renewed
from tests.stores.quorum.test_security import by_cli, everything, running, url_of
from tests.stores.quorum.world import Party, party, soon
from tests.support.needs import needs
from tests.support.servers import RedisServer
from tests.support.valkey import HAVE, WHY

pytestmark = [pytest.mark.server, needs(HAVE, WHY)]

ASK = Ask(10.0, "host-1")


def valkey() -> RedisServer:
    return RedisServer(program="valkey-server")


@pytest.fixture(scope="module")
def mixed() -> Iterator[list[RedisServer]]:
    """One of three is a Valkey."""
    with running(RedisServer, 2, valkey) as servers:
        yield servers


def test_valkey_servers_are_a_quorum_also_after_a_flush_and_a_restart() -> None:
    with running(valkey) as servers, party(url_of(servers)) as one:
        everything(one, by_cli(servers))
        for server in servers:
            server.cli("SCRIPT", "FLUSH")
        everything(Party(one.engine), by_cli(servers))
        for server in servers[:2]:
            server.restart()
        everything(Party(one.engine), by_cli(servers))


def test_the_doctor_knows_both(mixed: list[RedisServer]) -> None:
    with party(url_of(mixed)) as one:
        one.give(one.take(ASK))
        found = one.engine.diagnose(15.0, soon())
    assert "Valkey 8" in str(found)
    assert "Redis" in str(found)


def test_a_mixed_fleet_does_all_and_says_the_same(mixed: list[RedisServer]) -> None:
    with party(url_of(mixed)) as one:
        everything(one, by_cli(mixed))
        one.take(ASK)
        record = one.store.read(one.key, soon())
        assert record.holdings[0].holder == "host-1"
        assert len([it for it in record.nodes if "host-1" in it]) == 3


@pytest.mark.parametrize("at", range(3))
def test_any_one_of_a_mixed_fleet_may_be_frozen(mixed: list[RedisServer], at: int) -> None:
    """So Valkey decides with either Redis, as the other would."""
    with party(url_of(mixed)) as one:
        first = one.take(ASK)
        mixed[at].freeze()
        try:
            assert isinstance(one.renew(first, 10.0), Renewed)
            assert isinstance(Party(one.engine, one.key).try_take(ASK), Refused)
            assert one.give(first) == Released()
            then = Party(one.engine, one.key).try_take(ASK)
            assert isinstance(then, Granted)
            assert then.token > first.token
        finally:
            mixed[at].thaw()
