"""Operations of a signal handler inside of another one of its thread, in a store in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from incumbent import clock
from incumbent.model import Ask, Granted, Key
from incumbent.stores.memory import MemoryStore

KEY, OTHER = Key("default", "job"), Key("default", "other")
BY = clock.now() + 3600


def take(store: MemoryStore, key: Key, claim: str) -> object:
    return store.take(key, claim * 32, Ask(10.0, claim), BY)


def holders(store: MemoryStore, key: Key) -> list[str]:
    return [it.holder for it in store.read(key, BY).holdings]


def interrupted(outer: Callable[[], object], handler: Callable[[], object], at: int) -> bool:
    """Call `handler` at the call or return of that number in `outer`, as Python calls handlers."""
    left = [at]

    def each(_: object, event: str, __: object) -> None:
        # Between a step of Python's own and the function in C that it calls there is no handler.
        left[0] -= event != "c_call"
        if left[0] == -1 and event != "c_call":
            sys.setprofile(None)
            handler()

    sys.setprofile(each)
    try:
        outer()
    finally:
        sys.setprofile(None)
    return left[0] < 0


def anywhere(scene: Callable[[int], bool]) -> Iterator[int]:
    """Play the scene for each place of an interruption, until there is none of that number."""
    for at in count():
        if not scene(at):
            return
        yield at


def test_of_two_takes_one_is_granted_wherever_a_handler_comes() -> None:
    def scene(at: int) -> bool:
        store, granted = MemoryStore(), list[str]()

        def one(claim: str) -> None:
            if isinstance(take(store, KEY, claim), Granted):
                granted.append(claim)

        came = interrupted(lambda: one("a"), lambda: one("b"), at)
        assert granted in (["a"], ["b"])
        assert holders(store, KEY) == granted
        return came

    assert max(anywhere(scene)) > 20


def test_what_a_handler_takes_is_not_swept_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("incumbent.stores.memory._SWEEP_EVERY", 2)

    def scene(at: int) -> bool:
        now = [100.0]
        store = MemoryStore(now=lambda: now[0])
        take(store, KEY, "a")
        # Long after its end: the next take sweeps the name away.
        now[0] += 1e9
        came = interrupted(lambda: take(store, OTHER, "a"), lambda: take(store, KEY, "b"), at)
        assert holders(store, KEY) == (["b"] if came else [])
        assert holders(store, OTHER) == ["a"]
        return came

    assert max(anywhere(scene)) > 20


def test_a_handler_may_take_new_names_while_all_are_read() -> None:
    def scene(at: int) -> bool:
        store = MemoryStore()
        take(store, KEY, "a")
        came = interrupted(
            lambda: store.scan("default", "", BY), lambda: take(store, OTHER, "b"), at
        )
        assert came is (holders(store, OTHER) == ["b"])
        return came

    assert max(anywhere(scene)) > 10
