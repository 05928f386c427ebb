"""One link for each store of a process, whoever comes in between its making."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from incumbent import Lock
from incumbent.runtime import link as links
from incumbent.runtime import threads
from incumbent.runtime.link import Link, link_for
from incumbent.runtime.threads import Notifier
from incumbent.unpatched import start_thread
from tests.support.forks import in_a_child
from tests.support.waiting import eventually

_numbers = count()


def new_url() -> str:
    return f"memory:links-{next(_numbers)}"


@contextmanager
def handling(handler: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def slow_links(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, str]]:
    """Making the link of a certain URL takes until the test is over; set once it has begun."""
    begun, over, slow, good = threading.Event(), threading.Event(), new_url(), links.new_link

    def make(store: object) -> Link:
        if store == slow:
            begun.set()
            over.wait(60)
        return good(store)

    monkeypatch.setattr(links, "new_link", make)
    yield begun, slow
    over.set()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("same", [True, False])
def test_a_signal_handler_makes_a_lock_while_a_lock_is_made(
    monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    url, made, good = new_url(), list[Link](), links.new_link
    signals = iter([True])
    other = url if same else new_url()

    def make(store: object) -> Link:
        if next(signals, False):
            signal.raise_signal(signal.SIGUSR1)
        return good(store)

    def handler() -> None:
        Lock("in-handler", store=other).acquire().release()
        made.append(link_for(other))

    monkeypatch.setattr(links, "new_link", make)
    with handling(handler):
        lock = Lock("outside", store=url)
    assert lock._link is link_for(url)
    assert (made[0] is lock._link) is same


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forks_child_makes_a_lock_whatever_its_parents_threads_were_making(
    slow_links: tuple[threading.Event, str],
) -> None:
    begun, slow = slow_links
    thread = threading.Thread(target=lambda: link_for(slow), daemon=True)
    thread.start()
    assert begun.wait(30)

    def child() -> int:
        signal.alarm(60)
        Lock("a", store=new_url()).acquire().release()
        return 0

    assert in_a_child(child) == 0


def test_many_threads_that_name_one_store_share_its_link() -> None:
    url, together = new_url(), threading.Barrier(8)
    found: list[Link] = []

    def find() -> None:
        together.wait(30)
        found.append(link_for(url))

    threads = [threading.Thread(target=find) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


# -- callbacks, which a release in a signal handler may have to call


@pytest.mark.timeout(20)
def test_a_signal_handler_calls_back_while_the_first_callback_is_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notifier, starts = Notifier(), list[str]()
    done = threading.Event()

    def start(work: Callable[[], None], name: str) -> None:
        starts.append(name)
        signal.raise_signal(signal.SIGUSR1)
        start_thread(work, name)

    monkeypatch.setattr(threads, "start_thread", start)
    with handling(lambda: notifier.call(done.set)):
        notifier.call(lambda: None)
    assert done.wait(30)
    assert len(starts) == 1


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), ValueError()])
def test_a_callback_that_ends_its_thread_does_not_end_the_callbacks(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    notifier, done = Notifier(), threading.Event()

    def fail() -> None:
        raise error

    notifier.call(fail)
    notifier.call(done.set)
    assert done.wait(30)
    assert "a callback failed" in caplog.text


def test_callbacks_that_found_no_thread_are_called_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notifier, refusals = Notifier(), iter([True])
    calls: list[int] = []

    def start(work: Callable[[], None], name: str) -> None:
        if next(refusals, False):
            raise RuntimeError("can't start new thread")
        start_thread(work, name)

    monkeypatch.setattr(threads, "start_thread", start)
    for number in range(2):
        notifier.call(lambda number=number: calls.append(number))  # type: ignore[misc]
    eventually(lambda: calls == [0, 1])
    assert "can't start new thread" in caplog.text
