"""Waiting on etcd: woken by what happens, never later than `until`, whatever befalls the watch."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from incumbent import Client, clock
from incumbent.model import Parting
from incumbent.net.http import Stream
from incumbent.stores.etcd import client
from tests import tiers
from tests.stores.etcd.world import Party, new_claim, party, soon, watchers
from tests.support.etcd import EtcdServer
from tests.support.pace import BUSY, LONG, WOKEN, took
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.server


@pytest.fixture
def here(own_etcd: EtcdServer) -> Iterator[Party]:
    with party(own_etcd.store_url()) as one:
        yield one


def seconds_waited(one: Party, seen: str, within: float, *, on_asyncio: bool) -> float:
    began = clock.now()
    if on_asyncio:
        asyncio.run(_wait(one, seen, within))
    else:
        one.store.wait_change(one.key, seen, soon(within))
    return clock.now() - began


async def _wait(one: Party, seen: str, within: float) -> None:
    store = one.engine.async_store()
    await store.wait_change(one.key, seen, soon(within))
    await store.aclose()


BOTH = pytest.mark.parametrize("on_asyncio", [False, True])


@pytest.mark.left(tiers.MEET, "give-False", "close-True", "pause-False", "deleted-True")
@BOTH
@pytest.mark.parametrize("what", ["give", "close", "pause", "deleted"])
def test_a_waiter_is_woken(here: Party, own_etcd: EtcdServer, what: str, on_asyncio: bool) -> None:
    granted = here.take()
    seen = here.refused().seen
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seconds_waited, here, seen, LONG, on_asyncio=on_asyncio)
        eventually(lambda: watchers(own_etcd) >= 1)
        if what == "pause":
            here.store.put(here.key, "pause", b"{}", None, soon())
        elif what == "deleted":
            own_etcd.etcdctl("del", "--prefix", "")
        else:
            closed_for = 1.0 if what == "close" else 0.0
            here.store.give(
                here.key, here.claim, granted.token, soon(), parting=Parting(closed_for=closed_for)
            )
        assert waiting.result() < WOKEN


@BOTH
def test_a_waiter_that_nothing_happens_to_returns_in_time(here: Party, on_asyncio: bool) -> None:
    here.take()
    seen, began = here.refused().seen, clock.now()
    waited = seconds_waited(here, seen, 0.3, on_asyncio=on_asyncio)
    assert waited > 0.29
    assert took(began) < 0.3 + BUSY


@BOTH
def test_what_changed_before_the_watch_began_is_seen(here: Party, on_asyncio: bool) -> None:
    granted = here.take()
    seen = here.refused().seen
    here.store.give(here.key, here.claim, granted.token, soon())
    assert seconds_waited(here, seen, LONG, on_asyncio=on_asyncio) < WOKEN


@pytest.mark.left(tiers.SIDES, "True")
@BOTH
def test_a_revision_that_was_compacted_before_the_watch_began_is_no_error(
    here: Party, own_etcd: EtcdServer, on_asyncio: bool
) -> None:
    granted = here.take()
    seen = here.refused().seen
    here.store.give(here.key, here.claim, granted.token, soon())
    compact(own_etcd)
    # What happened in between is lost: the waiter is told to look again.
    assert seconds_waited(here, seen, LONG, on_asyncio=on_asyncio) < WOKEN


@pytest.mark.left(tiers.SIDES, "False")
@BOTH
def test_a_compaction_during_a_wait_neither_ends_nor_deafens_it(
    here: Party, own_etcd: EtcdServer, on_asyncio: bool
) -> None:
    granted = here.take()
    seen = here.refused().seen
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seconds_waited, here, seen, LONG, on_asyncio=on_asyncio)
        eventually(lambda: watchers(own_etcd) >= 1)
        compact(own_etcd)
        time.sleep(0.3)
        began = clock.now()
        here.store.give(here.key, here.claim, granted.token, soon())
        waiting.result()
        assert took(began) < BUSY


def compact(server: EtcdServer) -> None:
    for number in range(20):
        server.etcdctl("put", "unrelated", str(number))
    said = server.etcdctl("get", "unrelated", "-w", "json")
    revision = said.partition('"revision":')[2].partition(",")[0]
    server.etcdctl("compact", revision)


def test_a_watch_whose_server_restarts_is_taken_up_again(own_etcd: EtcdServer) -> None:
    with Client(own_etcd.store_url()) as holder, Client(own_etcd.store_url()) as other:
        etcd_lease = holder.lock("job", ttl=60).acquire()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.lock("job", ttl=6, timeout=40).acquire)
            eventually(lambda: watchers(own_etcd) >= 1)
            own_etcd.restart()
            eventually(lambda: watchers(own_etcd) >= 1)
            began = clock.now()
            etcd_lease.release()
            waiting.result(20).release()
            assert took(began) < BUSY


def test_a_watch_in_a_black_hole_ends_in_time(own_etcd: EtcdServer) -> None:
    with (
        FaultProxy(own_etcd.port) as proxy,
        party(f"etcd://127.0.0.1:{proxy.port}?restart_wait=0") as one,
    ):
        one.take()
        seen = one.refused().seen
        proxy.blackhole()
        began = clock.now()
        seconds_waited(one, seen, 1.0, on_asyncio=False)
        assert took(began) < 1.0 + BUSY


def test_a_signal_interrupts_a_wait(here: Party, own_etcd: EtcdServer) -> None:
    here.take()
    seen = here.refused().seen

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        began = clock.now()
        with pytest.raises(Interrupted):
            here.store.wait_change(here.key, seen, soon(LONG))
        assert took(began) < WOKEN
    finally:
        signal.signal(signal.SIGALRM, before)
    # And the next request is not answered with what was meant for the watch.
    here.refused(new_claim())
    eventually(lambda: watchers(own_etcd) <= 1)


def test_ten_waiters_get_it_one_after_the_other(own_etcd: EtcdServer) -> None:
    held: list[int] = []

    def one_turn(number: int) -> int:
        with Client(own_etcd.store_url()) as client, client.lock("job", timeout=20) as etcd_lease:
            held.append(number)
            assert held == [number]
            held.remove(number)
            return etcd_lease.fencing_token

    with Client(own_etcd.store_url()) as client, ThreadPoolExecutor(10) as pool:
        etcd_lease = client.lock("job").acquire()
        turns = [pool.submit(one_turn, number) for number in range(10)]
        eventually(lambda: watchers(own_etcd) >= 1)
        etcd_lease.release()
        tokens = [turn.result(25) for turn in turns]
    assert len(set(tokens)) == 10


@BOTH
def test_a_watch_that_the_gateway_loses_on_a_busy_machine_is_made_anew(
    here: Party, monkeypatch: pytest.MonkeyPatch, on_asyncio: bool
) -> None:
    lost: list[bytes] = []

    def begin(stream: Stream, request: bytes, until: float) -> None:
        """As if nobody had read the last watch of the first request."""
        if not lost and b"/v3/watch" in request:
            part = request.rindex(b'{"create_request"')
            lost.append(request[part:])
            request = request[:part] + b" " * len(lost[0])
        stream.send(request, until)

    monkeypatch.setattr(client, "begin", begin)
    here.store.put(here.key, "field", b"", None, soon())
    seen = here.store.read(here.key, soon()).seen
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seconds_waited, here, seen, LONG, on_asyncio=on_asyncio)
        eventually(lambda: lost)
        time.sleep(0.2)
        here.store.put(here.key, "field", None, None, soon())
        assert waiting.result() < WOKEN
