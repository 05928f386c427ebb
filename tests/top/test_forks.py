"""A child that is forked inside a body holds nothing, and takes the same name as anybody else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

import incumbent
from incumbent import (
    AsyncElection,
    AsyncGroup,
    AsyncLock,
    AsyncMultiLock,
    AsyncSemaphore,
    Client,
    Election,
    Group,
    Lock,
    MultiLock,
    ReadWriteLock,
    Semaphore,
    Shards,
)
from incumbent.locks.callers import Exclusion
from incumbent.runtime.link import link_for
from tests.support.forks import exit_code, fork, in_a_child
from tests.support.waiting import eventually

Make = Callable[..., Any]
PATIENCE = 20.0


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[dict[str, Any]]:
    url = f"sqlite:///{tmp_path}/forks.db"
    yield {"store": url}
    link_for(url).close()


class Child:
    """A forked child that does `work` once the parent has left the body."""

    def __init__(self, work: Callable[[], int]) -> None:
        reader, self._writer = os.pipe()

        def wait_and_work() -> int:
            os.close(self._writer)
            os.read(reader, 1)
            return work()

        self._child = fork(wait_and_work)
        os.close(reader)

    def go_on(self) -> int:
        """Its exit code."""
        os.close(self._writer)
        return exit_code(self._child)


def entered(body: AbstractContextManager[Any]) -> int:
    with body as lease:
        if hasattr(lease, "check"):
            lease.check()
        return 0


async def entered_async(body: AbstractAsyncContextManager[Any]) -> int:
    async with body as lease:
        if hasattr(lease, "check"):
            lease.check()
        return 0


def one(make: Make, *args: Any, **more: Any) -> Make:
    """A case in which parent and child enter one object."""

    def case(settings: dict[str, Any]) -> Make:
        made = make(*args, **settings, **more)
        return lambda: made

    return case


BODIES: dict[str, Callable[[dict[str, Any]], Make]] = {
    "a lock": one(Lock, "a", timeout=PATIENCE),
    "a reentrant lock": one(Lock, "a", timeout=PATIENCE, reentrant=True),
    "another reentrant lock": lambda them: (
        lambda: Lock("a", timeout=PATIENCE, reentrant=True, **them)
    ),
    "a semaphore": one(Semaphore, "a", 1, timeout=PATIENCE),
    "several names": one(MultiLock, ["a", "b"], timeout=PATIENCE),
    "the writer": one(lambda **more: ReadWriteLock("a", timeout=PATIENCE, **more).write),
    "a reader": one(lambda **more: ReadWriteLock("a", timeout=PATIENCE, **more).read),
    "a leader": lambda them: one(Election, "a", timeout=PATIENCE)(them)().lead,
    "a member": lambda them: one(Group, "a")(them)().join,
}

ASYNC_BODIES: dict[str, Callable[[dict[str, Any]], Make]] = {
    "a lock": one(AsyncLock, "a", timeout=PATIENCE),
    "a reentrant lock": one(AsyncLock, "a", timeout=PATIENCE, reentrant=True),
    "a semaphore": one(AsyncSemaphore, "a", 1, timeout=PATIENCE),
    "several names": one(AsyncMultiLock, ["a", "b"], timeout=PATIENCE),
    "a leader": lambda them: one(AsyncElection, "a", timeout=PATIENCE)(them)().lead,
    "a member": lambda them: one(AsyncGroup, "a")(them)().join,
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_child_forked_in_a_body_enters_it_once_the_parent_has_left(
    kind: str, settings: dict[str, Any]
) -> None:
    enter = BODIES[kind](settings)
    with enter():
        child = Child(lambda: entered(enter()))
    assert child.go_on() == 0


@pytest.mark.parametrize("kind", ASYNC_BODIES)
def test_a_child_forked_in_a_tasks_body_enters_it_once_the_parent_has_left(
    kind: str, settings: dict[str, Any]
) -> None:
    enter = ASYNC_BODIES[kind](settings)

    async def parent() -> Child:
        async with enter():
            return Child(lambda: asyncio.run(entered_async(enter())))

    assert asyncio.run(parent()).go_on() == 0


def holders(url: str) -> set[str]:
    with incumbent.Client(url) as client:
        return {holding.holder for record in client.scan("", 20) for holding in record.holdings}


@pytest.mark.parametrize("kind", BODIES)
def test_what_was_made_before_a_fork_has_the_childs_own_name_in_the_child(
    kind: str, settings: dict[str, Any]
) -> None:
    enter = BODIES[kind](settings)

    def child() -> int:
        with enter():
            return int(holders(settings["store"]) != {f"{os.uname().nodename}:{os.getpid()}"})

    with enter():
        assert holders(settings["store"]) == {f"{os.uname().nodename}:{os.getpid()}"}
    assert in_a_child(child) == 0
    assert in_a_child(lambda: in_a_child(child)) == 0, "a grandchild's name is its own, too"


@pytest.mark.parametrize("kind", ASYNC_BODIES)
def test_so_it_is_on_the_asyncio_side(kind: str, settings: dict[str, Any]) -> None:
    enter = ASYNC_BODIES[kind](settings)

    async def child() -> int:
        async with enter():
            return int(holders(settings["store"]) != {f"{os.uname().nodename}:{os.getpid()}"})

    assert in_a_child(lambda: asyncio.run(child())) == 0


def test_a_name_that_was_given_stays_in_the_child(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    election = Election("a", holder="node-7", **settings)
    assert in_a_child(lambda: int(election.holder != "node-7")) == 0
    monkeypatch.setenv("INCUMBENT_HOLDER", "set")
    # In a child, because this process may know its default name already.
    assert in_a_child(lambda: int(Election("a", **settings).holder != "set")) == 0


def test_a_child_forked_in_another_threads_body_enters_it_too(settings: dict[str, Any]) -> None:
    lock = Lock("a", timeout=PATIENCE, reentrant=True, **settings)
    children: list[Child] = []

    def parent() -> None:
        with lock, lock:
            children.append(Child(lambda: entered(lock)))

    thread = threading.Thread(target=parent)
    thread.start()
    thread.join()
    assert children[0].go_on() == 0


def test_a_child_forked_in_a_tasks_body_enters_a_blocking_lock(settings: dict[str, Any]) -> None:
    lock = Lock("a", timeout=PATIENCE, reentrant=True, **settings)

    async def parent() -> Child:
        with lock:
            return Child(lambda: entered(lock))

    assert asyncio.run(parent()).go_on() == 0


def test_a_child_forked_in_a_decorated_function_may_call_it(settings: dict[str, Any]) -> None:
    @incumbent.exclusive("a", store=settings["store"], timeout=PATIENCE, reentrant=True)
    def work(rest: Callable[[], Any]) -> Any:
        return rest()

    def under_its_own() -> int:
        incumbent.current().check()
        return 0

    child = work(lambda: Child(lambda: int(work(under_its_own))))
    assert child.go_on() == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_child_holds_nothing_while_its_parent_is_in_the_body(
    settings: dict[str, Any], reentrant: bool
) -> None:
    lock = Lock("a", timeout=0, reentrant=reentrant, **settings)
    with lock as lease:

        def tries() -> int:
            with pytest.raises(incumbent.NotAcquired), lock:
                pytest.fail("it holds the parent's lease")
            return 0 if lease.lost and not lock.owned() else 1

        assert in_a_child(tries) == 0
        lease.check()


def test_a_body_that_the_child_leaves_ends_in_a_loss_and_releases_nothing(
    settings: dict[str, Any],
) -> None:
    lock = Lock("a", reentrant=True, **settings)

    def leave(body: Iterator[None]) -> int:
        with pytest.raises(incumbent.LeaseLost) as lost:
            next(body)
        return 0 if lost.value.reason == "forked" else 1

    def body() -> Generator[None]:
        with lock:
            yield

    inside = body()
    next(inside)
    assert in_a_child(lambda: leave(inside)) == 0
    assert lock.owned() or lock.locked()
    inside.close()
    assert not lock.locked()


@pytest.mark.parametrize("kind", ["a member", "shards"])
def test_a_body_that_the_child_leaves_ends_no_membership(
    kind: str, settings: dict[str, Any]
) -> None:
    group, shards = Group("a", **settings), Shards("a", 2, **settings)

    def leave(inside: ExitStack) -> int:
        inside.close()
        # What is owed is paid now.
        link_for(settings["store"]).close()
        return 0

    with ExitStack() as inside:
        if kind == "a member":
            inside.enter_context(group.join())
        else:
            inside.enter_context(shards.running(lambda shard: shard.wait_stop()))
            eventually(lambda: len(shards.owned()) == 2)
        with Client(settings["store"]) as client:
            before, held = group.members(), shards.owned()
            roster = client.read("a").fields
            assert in_a_child(lambda: leave(inside)) == 0
            # The versions too: a name that was struck is soon written again.
            assert client.read("a").fields == roster
        assert group.members() == before != ()
        assert shards.owned() == held
        assert all(shard.valid for shard in held)


def test_a_campaign_of_another_thread_is_not_in_the_child(settings: dict[str, Any]) -> None:
    with Lock("a", **settings) as lease:
        election = Election("a", timeout=PATIENCE, **settings)
        with election.running(lambda term: term.wait_stop()):
            child = Child(lambda: entered(election.lead()))
            lease.check()
    assert child.go_on() == 0


def test_an_exclusion_is_one_callers_and_a_child_has_its_own() -> None:
    only = Exclusion()
    with only.enter() as first, only.enter() as second:
        assert (first, second) == (True, False)

        def child() -> int:
            with only.enter() as mine, only.enter() as again:
                return 0 if mine and not again else 1

        assert in_a_child(child) == 0
    with only.enter() as later:
        assert later
