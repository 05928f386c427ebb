"""Many leases on real servers: what renews them, and what must not keep it from doing so."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from incumbent import Client, clock
from incumbent.model import Batch, Gone, Granted, Renewal, Renewed
from tests import tiers
from tests.stores.redis.world import ASK, Party, new_claim, party, soon
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server


@contextmanager
def burning(threads: int) -> Iterator[None]:
    """Threads that never wait: the interpreter changes hands only when it must."""
    over = threading.Event()

    def burn() -> None:
        number = 0
        while not over.is_set():
            number += sum(range(100))

    started = [threading.Thread(target=burn, daemon=True) for _ in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in started:
            thread.join()


def batch_of(here: Party, number: int, ttl: float = 10.0) -> Batch:
    found = []
    for at in range(number):
        key = here.key._replace(name=f"{here.key.name}-{at}")
        granted = here.store.take(key, claim := new_claim(), ASK, soon())
        assert isinstance(granted, Granted)
        found.append(Renewal(key, claim, granted.token, ttl, granted.epoch))
    return Batch(found)


# -- one slow store


def test_a_frozen_server_costs_the_leases_of_another_nothing(redis_server: RedisServer) -> None:
    with (
        RedisServer() as frozen,
        Client(f"{frozen.url}?restart_wait=0") as there,
        Client(f"{redis_server.url}?restart_wait=0") as here,
    ):
        before = threading.active_count()
        doomed = [there.lock(f"doomed-{at}", ttl=4).acquire() for at in range(20)]
        kept = [here.lock(f"kept-{at}", ttl=4).acquire() for at in range(20)]
        # One that an earlier test has left to end may end meanwhile.
        assert threading.active_count() <= before + 2
        frozen.freeze()
        worst = 9.0
        until = clock.now() + 4.5
        while clock.now() < until:
            worst = min(worst, *(lease.remaining for lease in kept))
            time.sleep(0.02)
        assert all(lease.lost for lease in doomed)
        assert all(lease.valid for lease in kept)
        # A renewal is due each 0.8 s, and beside them nobody waits for the frozen one.
        assert worst > 1.0
        assert here._link.keeper.stats.failures == 0
        frozen.thaw()
        for lease in kept:
            lease.release()


# -- threads that burn CPU


@pytest.mark.left(tiers.SIDES, "4-*")
@pytest.mark.parametrize(("threads", "interval"), [(1, 0.005), (4, 0.005), (1, 0.05)])
def test_threads_that_burn_cpu_cost_no_lease(
    redis_server: RedisServer, threads: int, interval: float
) -> None:
    before = sys.getswitchinterval()
    with Client(f"{redis_server.url}?restart_wait=0") as client:
        leases = [client.lock(f"burnt-{at}", ttl=4).acquire() for at in range(300)]
        sys.setswitchinterval(interval)
        try:
            with burning(threads):
                time.sleep(4.5)
        finally:
            sys.setswitchinterval(before)
        assert sum(lease.valid for lease in leases) == 300
        for lease in leases:
            lease.release()


# -- one script call for many


def test_a_prepared_batch_is_renewed_again_and_each_lease_gets_its_own_answer(
    redis_server: RedisServer,
) -> None:
    with party(redis_server.url) as here:
        batch = batch_of(here, 5)
        store = here.store
        for _ in range(2):
            assert store.renew(batch, soon()) == [Renewed()] * 5
        redis_server.cli("DEL", f"incumbent:{{{batch[1].key}}}")
        redis_server.cli("HSET", f"incumbent:{{{batch[3].key}}}:r", "k", "1")
        outcomes = store.renew(batch, soon())
        assert outcomes == [Renewed(), Gone(), Renewed(), Renewed(), Renewed()]


def test_a_batch_prepared_for_another_life_of_the_server_renews_nothing(
    redis_server: RedisServer,
) -> None:
    with RedisServer() as server, party(server.url) as here:
        batch = batch_of(here, 3)
        assert here.store.renew(batch, soon()) == [Renewed()] * 3
        server.restart(empty=True)
        assert here.store.renew(batch, soon()) == [Gone("store_restarted")] * 3


def test_leases_of_one_call_keep_their_own_ttls_and_metadata(redis_server: RedisServer) -> None:
    with party(redis_server.url) as here:
        first, second, third = batch_of(here, 3, ttl=20.0)
        mixed = Batch(
            [
                first,
                Renewal(second.key, second.claim, second.token, 40.0, second.epoch),
                Renewal(third.key, third.claim, third.token, 30.0, third.epoch, b"new"),
            ]
        )
        assert here.store.renew(mixed, soon()) == [Renewed()] * 3
        records = [here.store.read(each.key, soon()).holdings[0] for each in mixed]
        assert [round(one.remaining or 0, -1) for one in records] == [20, 40, 30]
        assert [one.meta for one in records] == [b"", b"", b"new"]


def test_a_batch_survives_a_server_that_forgot_its_scripts(redis_server: RedisServer) -> None:
    with party(redis_server.url) as here:
        batch = batch_of(here, 3)
        redis_server.cli("SCRIPT", "FLUSH")
        assert here.store.renew(batch, soon()) == [Renewed()] * 3
