"""What elections need of real stores: the same stories on each engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import incumbent
from incumbent import AsyncElection, AsyncTerm, Election, clock
from tests import tiers
from tests.support.pace import LONG, WOKEN, took
from tests.support.waiting import eventually

TTL = 90
"""Seconds: who is not told of an end looks by itself after a third of it."""


def stands(client: incumbent.Client, name: str) -> Callable[[], bool]:
    return lambda: name in [found.holder for found in client.read("a").candidates]


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis")
def test_metadata_a_proclamation_and_the_end_reach_an_observer_in_time(every_store: str) -> None:
    news = Election("a", store=every_store, ttl=TTL).observe(timeout=LONG)
    assert next(news) is None
    candidate = Election("a", store=every_store, ttl=TTL, holder="me", metadata={"v": "1"})
    with candidate.lead() as term:
        first = next(news)
        assert first is not None
        assert (first.holder, first.term, first.metadata) == ("me", term.number, {"v": "1"})
        candidate.proclaim({"v": "2"})
        started = clock.now()
        second = next(news)
        assert second is not None
        assert second.metadata == {"v": "2"}
        assert took(started) < WOKEN
    started = clock.now()
    assert next(news) is None
    assert took(started) < WOKEN


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis")
def test_a_transfer_goes_to_the_named_one_of_three_candidates(every_store: str) -> None:
    numbers: dict[str, int] = {}

    def stand(name: str) -> None:
        with Election("a", store=every_store, ttl=TTL, holder=name).lead() as term:
            numbers[name] = term.number

    names = ("c0", "c1", "c2")
    threads = [threading.Thread(target=stand, args=(name,), daemon=True) for name in names]
    candidate = Election("a", store=every_store, ttl=TTL, holder="me")
    with incumbent.Client(every_store) as client, candidate.lead():
        for name, thread in zip(names, threads, strict=True):
            thread.start()
            eventually(stands(client, name))
        with pytest.raises(incumbent.NotCandidate):
            candidate.transfer(to="nobody")
        candidate.transfer(to="c2")
    for thread in threads:
        thread.join(60)
    assert min(numbers, key=numbers.__getitem__) == "c2"
    assert len(numbers) == 3


@pytest.mark.left(tiers.STORES, "sqlite")
def test_a_reservation_for_a_candidate_that_is_gone_ends_by_itself(every_store: str) -> None:
    candidate = Election("a", store=every_store, holder="me", ttl=5)
    term = candidate.campaign()
    gone = Election("a", store=every_store, holder="gone", ttl=5)

    def stood_by() -> bool:
        with pytest.raises(incumbent.AcquireTimeout):
            gone.campaign(0.5)
        with incumbent.Client(every_store) as client:
            return stands(client, "gone")()

    eventually(stood_by)
    candidate.transfer(to="gone")
    assert not term.valid
    with pytest.raises(incumbent.NotAcquired) as caught:
        Election("a", store=every_store, holder="other").campaign(0)
    assert (caught.value.reason, caught.value.held_by) == ("reserved", "gone")
    with Election("a", store=every_store, holder="other").lead(timeout=60) as term:
        term.check()


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis")
def test_a_resignation_wakes_the_next_candidate(every_store: str) -> None:
    async def forever(_: AsyncTerm) -> None:
        await asyncio.sleep(60)

    async def scenario() -> float:
        first = AsyncElection("a", store=every_store, ttl=TTL, holder="first")
        leading: asyncio.Task[Any] = asyncio.create_task(first.run(forever))
        while first.term is None:
            await asyncio.sleep(0.001)
        second = AsyncElection("a", store=every_store, ttl=TTL, holder="next")
        following = asyncio.create_task(second.campaign())
        async with incumbent.AsyncClient(every_store) as client:
            while not (await client.read("a")).candidates:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert await first.resign() is True
        released = clock.now()
        term = await following
        took = clock.now() - released
        await term.release()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        return took

    assert asyncio.run(scenario()) < WOKEN


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis")
def test_who_stands_by_beside_a_body_takes_over_at_once_behind_one_that_left(
    every_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many parts of one wait, as a long stand-by has.
    monkeypatch.setattr("incumbent.locks.running._POLL_EVERY", 0.05)

    def work(term: incumbent.Term) -> None:
        term.wait_stop()

    leads, leaves, follows = (
        Election("a", store=every_store, ttl=TTL, holder=f"c{n}") for n in range(3)
    )
    with incumbent.Client(every_store) as client, ExitStack() as left, leads.running(work):
        eventually(lambda: leads.is_leader)
        left.enter_context(leaves.running(work))
        eventually(stands(client, "c1"))
        with follows.running(work):
            eventually(stands(client, "c2"))
            left.close()
            released = clock.now()
            leads.resign()
            eventually(lambda: follows.is_leader)
            assert took(released) < WOKEN
        assert not follows.is_leader
