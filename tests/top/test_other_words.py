"""Who comes from another library, or takes the wrong side, is told our word."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any

import pytest

import incumbent
from incumbent import Misuse
from incumbent.durations import parse_duration
from incumbent.errors import ConfigError

STORE = "memory:"


def test_the_package_says_its_version() -> None:
    assert incumbent.__version__.split(".")[0].isdigit()


@pytest.mark.parametrize("kind", [incumbent.Lock, incumbent.AsyncLock, incumbent.Election])
@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("blocking_timeout", "`timeout`"),
        ("blocking", "`timeout`"),
        ("expire", "`ttl`"),
        ("lease_time", "`ttl`"),
        ("lease_duration", "`ttl`"),
        ("auto_renewal", "always renewed"),
        ("tttl", "did you mean 'ttl'?"),
        ("timeouts", "did you mean 'timeout'?"),
        ("grase", "did you mean 'grace'?"),
        ("lock_at_most_for", "`at_most_for`"),
    ],
)
def test_a_setting_of_another_library_names_ours(kind: Any, word: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting '\w+': ") as caught:
        kind("job", store=STORE, **{word: 5})
    assert ours in str(caught.value)


def test_a_decorator_says_so_at_once() -> None:
    with pytest.raises(ConfigError, match="`timeout`"):
        incumbent.exclusive("job", store=STORE, blocking_timeout=5)  # type: ignore[call-overload]


def test_a_word_that_is_like_none_lists_what_is_known() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'xyzzy'; known are at_least_for, "):
        incumbent.Lock("job", store=STORE, xyzzy=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("word", ["blocking", "blocking_timeout", "timout"])
def test_an_argument_of_acquire_of_another_library_names_ours(word: str) -> None:
    lock, other = incumbent.Lock("job", store=STORE), incumbent.AsyncLock("job", store=STORE)
    with pytest.raises(ConfigError, match=r"has no argument .*timeout"):
        lock.acquire(**{word: False})  # type: ignore[arg-type]

    async def ask() -> None:
        await other.acquire(**{word: False})  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"has no argument .*timeout"):
        asyncio.run(ask())
    with lock:
        pass


@pytest.mark.parametrize(
    "kind",
    [
        incumbent.AsyncLock,
        incumbent.AsyncSemaphore,
        incumbent.AsyncClient,
        incumbent.AsyncMultiLock,
    ],
)
def test_with_names_the_other_class(kind: Any) -> None:
    made = _made(kind)
    twin = kind.__name__.removeprefix("Async")
    expected = f"{kind.__name__} needs `async with`; where you write `with`, use {twin}$"
    with pytest.raises(Misuse, match=expected), made:
        pass


@pytest.mark.parametrize("kind", [incumbent.Lock, incumbent.Semaphore, incumbent.Client])
def test_async_with_names_the_other_class(kind: Any) -> None:
    made = _made(kind)

    async def enter() -> None:
        async with made:
            pass

    with pytest.raises(Misuse, match=f"where you write `async with`, use Async{kind.__name__}$"):
        asyncio.run(enter())


def _made(kind: Any) -> Any:
    name = kind.__name__.removeprefix("Async")
    if name == "Client":
        return kind(STORE)
    if name == "MultiLock":
        return kind(["a", "b"], store=STORE)
    return kind("job", store=STORE, **({"permits": 2} if name == "Semaphore" else {}))


def test_a_blocking_lock_that_waits_in_a_loop_warns_with_the_line_of_the_caller() -> None:
    with incumbent.Client("memory:") as client, client.lock("job"):

        async def wait() -> None:
            with pytest.raises(incumbent.AcquireTimeout):
                client.lock("job", timeout=0.2).acquire()

        def in_a_thread() -> None:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                asyncio.run(wait())
            found.extend(caught)

        found: list[Any] = []
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
        assert "use AsyncLock" in str(found[0].message)
        assert found[0].filename == __file__


def test_one_that_need_not_wait_in_a_loop_does_not_warn() -> None:
    async def take() -> None:
        with incumbent.Lock("free", store=STORE):
            pass
        lease = incumbent.Lock("free", store=STORE).try_acquire()
        assert lease is not None
        lease.release()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(take())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5min", 300.0),
        ("5 min", 300.0),
        ("1.5 hours", 5400.0),
        ("1 hour 30 minutes", 5400.0),
        ("2days", 172_800.0),
        ("10sec", 10.0),
        ("250 ms", 0.25),
        ("1h30m", 5400.0),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["5 weeks", "5M", "min", "5 min 3", "1m m", "5  min", "PT5M", "m5"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration(text)
