"""The etcd store over forks, event loops, signals, and programs that never close it."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import Granted, Refused, Released
from incumbent.stores.url import open_engine
from tests import tiers
from tests.stores.etcd.world import ASK, Party, new_claim, party, soon
from tests.support.etcd import EtcdServer
from tests.support.forks import in_a_child
from tests.support.pace import BUSY, took
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.server


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[FaultProxy]:
    with FaultProxy(etcd_server.port) as faulty:
        yield faulty


@pytest.fixture
def here(proxy: FaultProxy) -> Iterator[Party]:
    with party(url_of(proxy)) as one:
        yield one


def url_of(proxy: FaultProxy) -> str:
    return f"etcd://127.0.0.1:{proxy.port}?restart_wait=0"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forks_child_shares_no_connection_with_its_parent(here: Party, proxy: FaultProxy) -> None:
    granted = here.take()
    before = proxy.accepted

    def child() -> int:
        return 0 if isinstance(here.refused(), Refused) else 2

    assert in_a_child(child) == 0
    assert proxy.accepted == before + 1
    # The parent's connection lives on, in step.
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    assert proxy.accepted == before + 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forks_child_that_ends_takes_nothing_from_its_parent(here: Party) -> None:
    here.take()

    def child() -> int:
        gc.collect()
        here.store.close()
        return 0

    assert in_a_child(child) == 0
    assert here.refused().holders[0].claim == here.claim


def test_a_loop_that_ends_leaves_no_connection_and_no_warning(
    here: Party, proxy: FaultProxy
) -> None:
    async def main() -> None:
        await here.take_async()
        other = await here.engine.async_store().take(here.key, new_claim(), ASK, soon())
        assert isinstance(other, Refused)

    asyncio.run(main(), debug=True)
    gc.collect()
    eventually(lambda: proxy.live == 0)
    asyncio.run(main())


def test_each_loop_has_connections_of_its_own(here: Party) -> None:
    async def main() -> Granted:
        return await here.take_async()

    assert asyncio.run(main()).token == asyncio.run(main()).token


def test_a_program_that_never_closes_ends_without_a_word(etcd_server: EtcdServer) -> None:
    code = (
        "import asyncio\n"
        "from incumbent.model import Ask, Key\n"
        "from incumbent import clock\n"
        "from incumbent.stores.url import open_engine\n"
        f"engine = open_engine({etcd_server.store_url()!r})\n"
        "ask, key = Ask(5.0, 'h'), Key('faults', 'never-closed')\n"
        "engine.store().take(key, 'c', ask, clock.now() + 20)\n"
        "async def main():\n"
        # On a busy machine even this little takes long enough for asyncio to remark on it.
        "    asyncio.get_running_loop().slow_callback_duration = 60\n"
        "    await engine.async_store().take(key, 'c', ask, clock.now() + 20)\n"
        "asyncio.run(main())\n"
        "engine.store().give(key, 'c', None, clock.now() + 20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_engine_that_is_dropped_closes_its_connections(proxy: FaultProxy) -> None:
    Party(open_engine(url_of(proxy))).take()
    gc.collect()
    eventually(lambda: proxy.live == 0)


def test_an_engine_that_is_dropped_within_a_cycle_closes_its_connections_unseen(
    proxy: FaultProxy,
) -> None:
    one = Party(open_engine(url_of(proxy)))
    one.take()
    cycle: list[object] = [one]
    cycle.append(cycle)
    del one, cycle
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        gc.collect()
    assert heard == []
    eventually(lambda: proxy.live == 0)


# -- answers that are lost, and callers that go away


def test_a_lost_answer_to_a_take_is_unknown_and_the_repeat_is_the_same_grant(
    here: Party, proxy: FaultProxy
) -> None:
    here.store.read(here.key, soon())
    here.take(new_claim())
    here.store.give(here.key, here.store.read(here.key, soon()).holdings[0].claim, None, soon())
    # Every member that is asked loses its answer; the lone one is asked again.
    proxy.close_after_request(b"/v3/kv/txn", times=10)
    with pytest.raises(OutcomeUnknown):
        here.take(within=3)
    proxy.heal()
    holding = here.store.read(here.key, soon()).holdings[0]
    assert holding.claim == here.claim
    assert here.take().token == holding.token


def test_a_give_whose_answer_was_lost_is_asked_for_again_and_says_that_nobody_knows(
    here: Party, proxy: FaultProxy
) -> None:
    granted = here.take()
    proxy.close_after_request(b"/v3/kv/txn", times=1)
    # "gone" would be a loss of the lease, which the first request may have given back.
    with pytest.raises(OutcomeUnknown, match="given back, or it was lost before"):
        here.store.give(here.key, here.claim, granted.token, soon())
    assert here.store.read(here.key, soon()).holdings == ()


def test_a_signal_in_the_middle_of_a_take_leaves_the_next_answer_its_own(
    here: Party, proxy: FaultProxy
) -> None:
    here.take()

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in (0.002, 0.01, 0.02, 0.03, 0.05):
            proxy.delay(0.02)
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, delay)
                while True:
                    here.store.take(here.key, new_claim(), ASK, soon())
            proxy.heal()
            assert here.refused().holders[0].claim == here.claim
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_cancelled_take_leaves_the_next_answer_its_own(here: Party, proxy: FaultProxy) -> None:
    async def main() -> None:
        store = here.engine.async_store()
        await here.take_async()
        for delay in (0.001, 0.01, 0.02, 0.03, 0.05):
            proxy.delay(0.02)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay):
                    while True:
                        await store.take(here.key, new_claim(), ASK, soon())
            proxy.heal()
            outcome = await store.take(here.key, new_claim(), ASK, soon())
            assert isinstance(outcome, Refused)
            assert outcome.holders[0].claim == here.claim
        await store.aclose()

    asyncio.run(main())


@pytest.mark.left(tiers.FORMS, "blackhole", "drop_replies")
@pytest.mark.parametrize("fault", ["blackhole", "drop_replies", "drop_requests"])
def test_every_call_ends_at_its_deadline(here: Party, proxy: FaultProxy, fault: str) -> None:
    granted = here.take()
    getattr(proxy, fault)()
    calls: list[Callable[[float], object]] = [
        lambda until: here.store.take(here.key, new_claim(), ASK, until),
        lambda until: here.store.renew([here.renewal(granted)], until),
        lambda until: here.store.give(here.key, here.claim, granted.token, until),
        lambda until: here.store.read(here.key, until),
        lambda until: asyncio.run(take_async(here, until)),
    ]
    for call in calls:
        began = clock.now()
        with pytest.raises(StoreError):
            call(began + 0.4)
        assert took(began) < 0.4 + BUSY
    proxy.heal()


async def take_async(one: Party, until: float) -> object:
    return await one.engine.async_store().take(one.key, new_claim(), ASK, until)
