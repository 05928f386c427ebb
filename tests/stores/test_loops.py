"""One store an event loop, and hearing of the loop's end."""

from __future__ import annotations

import asyncio
import gc

import pytest

from incumbent.stores.loops import LoopEnd, Loops


class Store:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.detached = False

    def detach(self) -> None:
        self.detached = True


async def twice(loops: Loops[Store]) -> Store:
    first = loops.store()
    assert loops.store() is first
    return first


def test_each_loop_has_a_store_of_its_own_and_a_closed_one_is_forgotten() -> None:
    loops: Loops[Store] = Loops(Store)
    stores = [asyncio.run(twice(loops)) for _ in range(3)]
    assert len({id(store) for store in stores}) == 3
    # The last one goes when the next is made.
    assert [store.loop.is_closed() for store in loops._stores.values()] == [True]


def test_where_no_loop_runs_there_is_no_store() -> None:
    with pytest.raises(RuntimeError):
        Loops(Store).store()


def test_in_a_forks_child_all_are_detached_and_kept() -> None:
    loops: Loops[Store] = Loops(Store)

    async def main() -> None:
        store = loops.store()
        loops.detach()
        assert store.detached
        assert loops.store() is not store

    asyncio.run(main())


def test_the_end_of_a_loop_is_told_once() -> None:
    told: list[str] = []

    async def main() -> None:
        end = LoopEnd(lambda: told.append("ended"))
        await end.watch()
        await end.watch()
        assert told == []

    asyncio.run(main())
    assert told == ["ended"]


def test_who_watches_no_longer_hears_nothing_and_can_watch_again() -> None:
    told: list[str] = []
    end = LoopEnd(lambda: told.append("ended"))

    async def main() -> None:
        await end.watch()
        await end.aclose()
        gc.collect()

    asyncio.run(main())
    assert told == []
    asyncio.run(end.watch())
    assert told == ["ended"]
