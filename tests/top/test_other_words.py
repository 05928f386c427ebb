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


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (incumbent.Semaphore, ("job",), {"value": 3}, "has no argument 'value': `permits`"),
    (incumbent.Semaphore, ("job",), {"limit": 3}, "has no argument 'limit': `permits`"),
    (incumbent.AsyncSemaphore, ("job",), {"permit": 3}, "did you mean 'permits'?"),
    (incumbent.Lock, (), {"key": "job"}, "has no argument 'key': `name`"),
    (incumbent.MultiLock, (), {"keys": ["a"]}, "has no argument 'keys': `names`"),
    (incumbent.AsyncMultiLock, (), {"resources": ["a"]}, "'resources': `names`"),
    (incumbent.ReadWriteLock, (), {"resource": "job"}, "has no argument 'resource': `name`"),
    (incumbent.AsyncReadWriteLock, (), {"nam": "job"}, "did you mean 'name'?"),
    (incumbent.Election, (), {"key": "job"}, "Election() has no argument 'key': `name`"),
    (incumbent.Group, (), {"key": "job"}, "Group() has no argument 'key': `name`"),
    (incumbent.Shards, ("job",), {"partitions": 3}, "'partitions': `count`"),
    (incumbent.AsyncShards, ("job",), {"shards": 3}, "has no argument 'shards': `count`"),
    (incumbent.once, ("job",), {"every": "1d"}, "once() has no argument 'every': `per`"),
    (incumbent.once, ("job",), {"interval": 60}, "has no argument 'interval': `per`"),
]


@pytest.mark.parametrize(("call", "given", "words", "said"), CALLS)
def test_a_call_with_another_librarys_words_names_ours(
    call: Any, given: tuple[Any, ...], words: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match="has no argument") as caught:
        call(*given, store=STORE, **words)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        (incumbent.Semaphore, ("job",), "'permits': write Semaphore(name, permits), and settings"),
        (incumbent.Lock, ("job", 30), "too many positional arguments: write Lock(name), and"),
        (incumbent.MultiLock, ("a", "b"), "positional arguments: write MultiLock(names), and"),
        (incumbent.AsyncElection, ("job", 30), "arguments: write AsyncElection(name), and"),
        (incumbent.once, ("job",), "'per': write once(name, per=...), and settings"),
        (incumbent.exclusive, ("job", 30), "arguments: write exclusive(name), and settings"),
        (incumbent.Client(STORE).semaphore, ("job",), "'permits': write semaphore(name, permits)"),
        (incumbent.AsyncClient(STORE).shards, ("job",), "'count': write shards(name, count)"),
    ],
)
def test_a_call_that_lacks_an_argument_or_names_too_few_shows_how_to_write_it(
    call: Any, given: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call(*given)
    assert said in str(caught.value)


def test_an_error_inside_of_a_correct_call_stays_what_it_is() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        incumbent.MultiLock([["a"], ["b"]], store=STORE)  # type: ignore[list-item]


@pytest.mark.parametrize("timeout", [True, False, -1])
@pytest.mark.parametrize("kind", [incumbent.Lock, incumbent.MultiLock, incumbent.Semaphore])
def test_the_arguments_of_threading_locks_say_what_to_write(kind: Any, timeout: Any) -> None:
    with pytest.raises(ConfigError, match="write 0 to try once, None to wait for ever"):
        _made(kind).acquire(timeout)


@pytest.mark.parametrize("kind", [incumbent.MultiLock, incumbent.AsyncMultiLock])
def test_a_lock_on_several_names_knows_the_words_of_acquire_too(kind: Any) -> None:
    async def ask() -> None:
        await kind(["a", "b"], store=STORE).acquire(blocking=False)

    with pytest.raises(ConfigError, match=r"has no argument 'blocking': `timeout`"):
        asyncio.run(ask())
