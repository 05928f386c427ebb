"""The API server is killed, frozen or busy, and watches end: what goes on all the same."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import GiveOutcome, Key, Queue, Released, Renewal, Renewed, Unproved
from incumbent.stores.base import Answers, AsyncTogether, Give
from tests import tiers
from tests.cli.tool import command_line, environment, incumbent
from tests.stores.kubernetes.world import a_namespace, open_at, url_of
from tests.stores.party import ASK, Party, soon
from tests.support.kubernetes import ApiServer
from tests.support.waiting import eventually

LONG = replace(ASK, ttl=60.0)
Upset = Callable[[ApiServer], None]


def _kill(server: ApiServer) -> None:
    server.stop()
    server.start()


def _freeze(server: ApiServer) -> None:
    server.freeze()
    time.sleep(0.5)
    server.thaw()


def _fail(status: int) -> Upset:
    return lambda server: server.fail(status, 0.5, retry_after=1)


OUTAGES = [_kill, _freeze, _fail(503), _fail(429)]


@pytest.mark.left(tiers.CRASHES, "frozen", "429")
@pytest.mark.parametrize("outage", OUTAGES, ids=["killed", "frozen", "503", "429"])
def test_after_an_outage_a_lease_is_renewed_and_another_is_granted(
    own_api_server: ApiServer, alone: Party, outage: Upset
) -> None:
    granted = alone.take(ask=LONG)
    outage(own_api_server)

    def goes_on() -> bool:
        try:
            (renewed,) = alone.store.renew([alone.renewal(granted, 60.0)], soon(2.0))
            other = Party(alone.engine)
            other.store.give(other.key, other.claim, other.take(within=2.0).token, soon())
        except StoreError:
            return False
        return renewed == Renewed()

    eventually(goes_on)


def test_while_it_has_no_time_for_us_it_says_when_to_come_again(
    own_api_server: ApiServer, alone: Party
) -> None:
    alone.take(ask=LONG)
    for status in (429, 503):
        own_api_server.fail(status, 30.0, retry_after=7)
        with pytest.raises(
            StoreUnavailable, match=f"is overloaded or not ready .{status}."
        ) as caught:
            Party(alone.engine).take()
        assert caught.value.retry_after == 7.0
        assert not caught.value.permanent
    own_api_server.fail(503, 0.0)


def test_a_take_whose_answer_was_lost_is_the_same_grant_when_it_is_asked_again(
    own_api_server: ApiServer, alone: Party
) -> None:
    alone.store.give(alone.key, alone.claim, alone.take().token, soon())
    own_api_server.lose_answers("update")
    with pytest.raises(StoreError):
        alone.take()
    again = alone.take()
    assert alone.store.read(alone.key, soon()).holdings[0].token == again.token


# -- batches ---------------------------------------------------------------------------------------


def _held(party: Party, number: int) -> list[Renewal]:
    """The renewals of so many leases."""
    parties = [Party(party.engine, Key("default", f"n{index}")) for index in range(number)]
    return [each.renewal(each.take(ask=LONG), 60.0) for each in parties]


async def _give_all(party: Party, renewals: list[Renewal], within: float) -> Answers[GiveOutcome]:
    store = party.engine.async_store()
    assert isinstance(store, AsyncTogether)
    gives = [Give(it.key, it.claim, it.token) for it in renewals]
    return await store.give_all(gives, soon(within))


@pytest.mark.left(tiers.LONG)
def test_one_slow_answer_makes_no_other_of_its_batch_late(
    own_api_server: ApiServer, alone: Party
) -> None:
    renewals = _held(alone, 20)
    own_api_server.delay("update", 120.0, name="n0")
    slow, *others = alone.store.renew(renewals, soon(12.0))
    assert others == [Renewed()] * 19
    assert isinstance(slow, Unproved)
    slow_give, *gives = asyncio.run(_give_all(alone, renewals, 12.0))
    assert gives == [Released()] * 19
    assert isinstance(slow_give, StoreError)
    own_api_server.delay("update", 0.0)


@pytest.mark.left(tiers.LONG)
def test_several_of_a_batch_are_asked_for_at_once(own_api_server: ApiServer, alone: Party) -> None:
    renewals = _held(alone, 60)
    own_api_server.delay("update", 0.5)
    # One after another they would need 30 s.
    assert alone.store.renew(renewals, soon(20.0)) == [Renewed()] * 60
    assert asyncio.run(_give_all(alone, renewals, 20.0)) == [Released()] * 60
    own_api_server.delay("update", 0.0)


@pytest.mark.left(tiers.LONG)
def test_takes_that_occupy_their_connections_leave_some_to_renewals(
    own_api_server: ApiServer, alone: Party
) -> None:
    renewals = _held(alone, 20)
    own_api_server.delay("create", 120.0)
    own_api_server.forget_requests()

    def take() -> None:
        with suppress(StoreError):
            Party(alone.engine).take(within=60.0)

    threads = [threading.Thread(target=take) for _ in range(12)]
    for thread in threads:
        thread.start()
    # Each looks for its name, and has a connection from then on.
    eventually(lambda: sum(it.status == 404 for it in own_api_server.requests) >= 10)
    assert alone.store.renew(renewals, soon(20.0)) == [Renewed()] * 20
    own_api_server.stop()
    for thread in threads:
        thread.join(90.0)
        assert not thread.is_alive()


# -- watches ---------------------------------------------------------------------------------------


def _compact(server: ApiServer) -> None:
    for index in range(3):
        server.create("default", f"other-{index}", holderIdentity="x")
    server.compact()
    server.cut_watches()


@pytest.mark.left(tiers.CRASHES, "compacted")
@pytest.mark.parametrize(
    "upset",
    [ApiServer.cut_watches, _compact, _kill],
    ids=["cut", "compacted", "killed"],
)
def test_a_waiter_hears_of_a_release_after_its_watch_has_ended(
    own_api_server: ApiServer, alone: Party, upset: Upset
) -> None:
    granted = alone.take(ask=LONG)
    waiting = Party(open_at(url_of(own_api_server, "default")), alone.key)
    refused = waiting.refused(ask=replace(LONG, queue=Queue(30.0)))
    until = clock.now() + 120.0

    def wait() -> None:
        # A watch that ends may wake it in vain; then it asks, and waits again.
        held = True
        while held and clock.now() < until:
            with suppress(StoreError):
                waiting.store.wait_change(alone.key, refused.seen, until)
                held = bool(waiting.store.read(alone.key, soon()).holdings)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: any(it.verb == "watch" for it in own_api_server.requests))
    upset(own_api_server)
    alone.store.give(alone.key, alone.claim, granted.token, soon())
    thread.join(60.0)
    assert not thread.is_alive()
    waiting.store.close()


def test_bookmarks_spare_a_list_after_a_watch_has_ended(
    own_api_server: ApiServer, alone: Party
) -> None:
    own_api_server.set_bookmarks(0.1)
    alone.take(ask=LONG)
    refused = alone.refused()
    until = clock.now() + 2.0
    alone.store.wait_change(alone.key, refused.seen, until)
    assert clock.now() >= until
    assert [it.verb for it in own_api_server.requests].count("list") == 1


# -- a CronJob -------------------------------------------------------------------------------------


@pytest.mark.left(tiers.LONG)
def test_a_try_that_does_not_wait_takes_over_after_a_holder_that_died(
    api_server: ApiServer, tmp_path: Path
) -> None:
    config = str(api_server.kubeconfig(tmp_path / "config"))
    store = f"kubernetes://test/{a_namespace(api_server)}?restart_wait=0"
    env = {"KUBECONFIG": config, "INCUMBENT_STORE": store}
    line = ("run", "--ttl", "3", "--grace", "0.5", "nightly", "--")
    ready = tmp_path / "ready"
    holder = subprocess.Popen(
        command_line(*line, "sh", "-c", f"touch {ready}; exec sleep 600"), env=environment(env)
    )
    eventually(ready.exists)
    # As if its node was gone: nobody is left who could give it back.
    holder.send_signal(signal.SIGSTOP)
    try:
        assert incumbent(*line, "true", env=env).returncode == 75
        began = time.monotonic()
        while incumbent(*line, "true", env=env).returncode == 75:
            assert time.monotonic() < began + 120.0
    finally:
        holder.send_signal(signal.SIGCONT)
        holder.terminate()
        holder.wait()


def test_what_is_missing_is_said_with_the_right_code(
    own_api_server: ApiServer, tmp_path: Path
) -> None:
    env = {"KUBECONFIG": str(own_api_server.kubeconfig(tmp_path / "config"))}
    own_api_server.deny("create")
    line = ("run", "nightly", "--", "true")
    done = incumbent("-s", "kubernetes://test/default", *line, env=env)
    assert done.returncode == 69
    assert "may not create leases in default: kubectl -n default create role" in done.stderr
    done = incumbent("-s", "kubernetes://none/default", *line, env=env)
    assert done.returncode == 64
    assert "no context 'none'" in done.stderr
