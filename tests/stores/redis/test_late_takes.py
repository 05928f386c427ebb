"""A take that the server carries out after nobody waits for it any more leaves nothing."""

from __future__ import annotations

import time

import pytest

from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Ask, Gone, Parting, Queue, Released, Slot
from tests.quorum.walls import ShiftedServer
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server

ONCE = Ask(0.5, "host-1", slot=Slot("day", 3600.0))


def take_in_vain(one: Party, server: RedisServer, ask: Ask) -> None:
    """A take whose server is frozen until nobody waits for the answer."""
    server.freeze()
    try:
        with pytest.raises(OutcomeUnknown):
            one.store.take(one.key, one.claim, ask, soon(1.0))
        time.sleep(0.1)
    finally:
        server.thaw()


def test_a_server_that_was_frozen_uses_no_slot_for_a_take_that_comes_too_late(
    own_redis: RedisServer,
) -> None:
    with party(own_redis.url) as one:
        one.take(new_claim(), ask=Ask(0.1, "host-1"))
        time.sleep(0.12)
        take_in_vain(one, own_redis, ONCE)
        with party(own_redis.url) as other:
            other.key = one.key
            assert other.take(ask=ONCE)


def test_a_late_take_leaves_no_place_in_line(own_redis: RedisServer) -> None:
    with party(own_redis.url) as holder, party(own_redis.url) as one:
        one.key = holder.key
        holder.take()
        one.refused()
        take_in_vain(one, own_redis, Ask(10.0, "host-2", queue=Queue(5.0)))
        assert own_redis.cli("ZCARD", f"{one.main}:q") == "0"


def test_a_claim_that_was_given_up_in_doubt_is_not_granted_later(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one:
        assert (
            one.store.give(one.key, one.claim, None, soon(), parting=Parting(slot="day")) == Gone()
        )
        with pytest.raises(StoreUnavailable):
            one.store.take(one.key, one.claim, ONCE, soon())
        # Neither a lease nor a slot: another one gets both.
        other = one.take(new_claim(), ask=ONCE)
        assert one.store.give(one.key, other.claim, other.token, soon()) == Released()


def test_a_claim_in_doubt_is_noted_by_a_server_out_of_memory_too(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one:
        other = one.take(new_claim())
        own_redis.cli("CONFIG", "SET", "maxmemory", "1")
        assert one.store.give(one.key, one.claim, None, soon()) == Gone()
        own_redis.cli("CONFIG", "SET", "maxmemory", "0")
        assert one.store.give(one.key, other.claim, other.token, soon()) == Released()
        with pytest.raises(StoreUnavailable, match="too late"):
            one.take()


def test_a_name_is_as_fast_as_ever_once_the_doubt_is_over() -> None:
    with ShiftedServer() as server, party(server.url) as one:
        one.take(new_claim(), ask=Ask(0.1, "h"))
        one.store.give(one.key, one.claim, None, soon())
        assert server.cli("HEXISTS", one.companion, "d") == "1"
        server.set_wall(61.0)
        first = one.take(new_claim(), ask=Ask(0.1, "h"))
        assert one.store.give(one.key, first.claim, first.token, soon()) == Released()
        assert server.cli("HEXISTS", one.companion, "d") == "0"
        assert server.cli("HGET", one.companion, "x") != "0"
        # The claim itself stays beside it until the next one.
        one.store.give(one.key, new_claim(), None, soon())
        assert server.cli("HEXISTS", one.companion, f"d:{one.claim}") == "0"


def test_a_claim_in_doubt_is_noted_once_and_for_a_minute_or_two_however_many_there_are() -> None:
    with ShiftedServer() as server, party(server.url) as one:
        one.take(new_claim(), ask=Ask(0.1, "h"))
        for _ in range(5):
            one.store.give(one.key, one.claim, None, soon())
        before = int(server.cli("HLEN", one.companion))
        server.set_wall(61.0)
        # There is always a new one, so that the doubt is never over.
        for _ in range(5):
            one.store.give(one.key, new_claim(), None, soon())
        assert server.cli("HEXISTS", one.companion, f"d:{one.claim}") == "0"
        assert int(server.cli("HLEN", one.companion)) == before + 4


# -- clocks that are set


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_server_whose_clock_is_set_goes_on_granting(step: float) -> None:
    with ShiftedServer() as server, party(server.url) as one:
        for _ in range(3):
            granted = one.take(new_claim())
            assert one.store.give(one.key, granted.claim, granted.token, soon()) == Released()
            server.set_wall(step)


def test_a_server_whose_clock_is_hours_wrong_grants() -> None:
    with ShiftedServer(seconds=-7200.0) as server, party(server.url) as one:
        assert one.take()


def test_a_refusal_for_lateness_is_certain(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one:
        one.take()
        # As if the connection had learnt the server's clock long before that was set.
        for wire in one.store.operations.idle:
            wire.server.clock_ahead -= 3600.0
        assert one.take().claim == one.claim
