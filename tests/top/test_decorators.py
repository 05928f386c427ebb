"""`@exclusive` and `@once`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

import incumbent
from tests.support.faulty import FaultyEngine


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def test_exclusive_names_its_lease_by_the_arguments(engine: FaultyEngine) -> None:
    @incumbent.exclusive("order:{order_id}", if_held="skip", store=engine)
    def ship(order_id: int, *, fast: bool = False) -> str:
        """Ship it."""
        held_by = incumbent.Lock(f"order:{order_id}", store=engine).held_by()
        return f"{order_id} {fast} {held_by is not None}"

    assert ship(7, fast=True) == "7 True True"
    assert ship(order_id=8) == "8 False True"
    assert ship.__doc__ == "Ship it."


def test_exclusive_skips_raises_or_waits_while_another_holds(engine: FaultyEngine) -> None:
    def body() -> str:
        return "ran"

    lease = incumbent.Lock("a", store=engine).acquire()
    assert incumbent.exclusive("a", if_held="skip", store=engine)(body)() is None
    with pytest.raises(incumbent.NotAcquired):
        incumbent.exclusive("a", if_held="raise", store=engine)(body)()
    with pytest.raises(incumbent.AcquireTimeout):
        incumbent.exclusive("a", store=engine, timeout="20ms")(body)()
    lease.release()
    assert incumbent.exclusive("a", store=engine)(body)() == "ran"


def test_a_busy_lease_inside_the_body_is_not_taken_for_a_skip(engine: FaultyEngine) -> None:
    @incumbent.exclusive("a", if_held="skip", store=engine)
    def body() -> None:
        incumbent.Lock("b", store=engine, timeout=0).acquire()

    with incumbent.Lock("b", store=engine), pytest.raises(incumbent.NotAcquired):
        body()


def test_an_argument_that_makes_no_name_is_escaped_and_a_valid_one_stays(
    engine: FaultyEngine,
) -> None:
    @incumbent.exclusive("order:{order_id!s}:{kind}", store=engine)
    def ship(order_id: str, kind: object = 7) -> list[str]:
        return [each.key.name for each in client.scan() if each.holdings]

    client = incumbent.Client(engine)
    assert ship("b-2") == ["order:b-2:7"]
    assert ship("a b") == ["order:a@-20-b:7"]
    assert ship("a", "7:x") == ["order:a:7:x"], "it was valid before, and is what it was"
    assert ship("a@-b") == ["order:a@-40--b:7"], "it looks like one that is escaped"
    assert ship("x.", "7:y ") == ["order:x@-2e-:7@-3a-y@-20-"]


def test_a_slot_is_named_by_the_arguments_too(engine: FaultyEngine) -> None:
    ran = []

    @incumbent.once("report", per="1h", slot="{day}", store=engine)
    def report(day: str) -> None:
        ran.append(day)

    for day in ("monday", "monday", "tuesday", "1. 4.", "1. 4."):
        report(day)
    assert ran == ["monday", "tuesday", "1. 4."]


def test_a_slot_that_names_no_parameter_is_refused_where_it_is_written(
    engine: FaultyEngine,
) -> None:
    with pytest.raises(
        incumbent.ConfigError, match=r"the slot '.day.' cannot be filled in"
    ) as said:

        @incumbent.once("report", per="1h", slot="{day}", store=engine)
        def report() -> None: ...

    assert said.value.name == "slot"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("order:{nothing}", "nothing is no parameter of .*ship .it has: order_id, more"),
        ("order:{nothing.id}", "nothing is no parameter"),
        ("order:{order_id:{nothing}}", "nothing is no parameter"),
        ("order:{}", "has a place and no name"),
        ("order:{0}", "has a place and no name"),
        ("order:{0.id}", "has a place and no name"),
        ("order:{order_id", "expected '}'"),
        ("order:order_id}", "Single '}'"),
        ("order:{order_id!x}", "!x is no conversion"),
        ("order {order_id}", "'order order_id' is not a name"),
        ("order:{{{order_id}}}", "is not a name"),
        ("an order", "is not a name"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused_when_decorating(
    template: str, said: str
) -> None:
    def ship(order_id: str, /, **more: str) -> None: ...

    for decorate in (
        incumbent.exclusive(template),
        incumbent.exclusive(template, if_held="skip"),
        incumbent.once(template, per="1h"),
    ):
        with pytest.raises(incumbent.ConfigError, match=said) as refused:
            decorate(ship)
        assert refused.value.name == "name"


def test_a_template_takes_what_an_argument_has_and_tells_what_it_lacks(
    engine: FaultyEngine,
) -> None:
    seen: list[str | None] = []

    @incumbent.exclusive("order:{order[id]:03d}:{more[by]}", store=engine)
    def ship(order: dict[str, int], /, **more: str) -> None:
        seen.append(incumbent.Lock("order:007:me", store=engine).held_by())

    ship({"id": 7}, by="me")
    assert seen[0] is not None
    for order, more, said in (
        ({"no": 7}, {"by": "me"}, "KeyError: 'id'"),
        ({"id": "7"}, {"by": "me"}, "Unknown format code"),
    ):
        with pytest.raises(incumbent.ConfigError, match=said) as refused:
            ship(order, **more)  # type: ignore[arg-type]  # what a checker would have found
        assert refused.value.__suppress_context__
    with pytest.raises(TypeError, match="missing a required"):
        ship()  # type: ignore[call-arg]  # the caller's mistake is told as Python tells it


def test_an_unknown_policy_is_refused_when_decorating() -> None:
    with pytest.raises(incumbent.ConfigError, match="if_held"):
        incumbent.exclusive("a", if_held="whatever")  # type: ignore[call-overload]  # refused at run time too


def test_once_runs_once_for_functions_and_coroutines(engine: FaultyEngine) -> None:
    @incumbent.once("nightly", per="12h", store=engine)
    def sync_job() -> str:
        return "ran"

    @incumbent.once("hourly", per="1h", store=engine)
    async def async_job() -> str:
        return "ran"

    assert [sync_job(), sync_job()] == ["ran", None]
    assert [asyncio.run(async_job()), asyncio.run(async_job())] == ["ran", None]


def test_a_decorated_function_asks_for_the_lease_of_its_call(engine: FaultyEngine) -> None:
    @incumbent.exclusive("inner", store=engine)
    def inner() -> str:
        return incumbent.current().name

    @incumbent.exclusive("outer", store=engine)
    def outer() -> tuple[str, str, str]:
        incumbent.current().check(need=1)
        return incumbent.current().name, inner(), incumbent.current().name

    @incumbent.once("later", per="1h", store=engine)
    async def later() -> tuple[str, str]:
        helper = asyncio.create_task(asyncio.to_thread(lambda: incumbent.current().name))
        return incumbent.current().name, await helper

    assert outer() == ("outer", "inner", "outer")
    assert asyncio.run(later()) == ("later", "later")
    with pytest.raises(incumbent.Misuse, match="decorated with exclusive or once"):
        incumbent.current()


def test_a_task_that_outlives_the_call_finds_its_lease_gone(engine: FaultyEngine) -> None:
    over = asyncio.Event()

    async def helper() -> None:
        await over.wait()
        incumbent.current().check()

    @incumbent.exclusive("job", store=engine)
    async def job() -> asyncio.Task[None]:
        return asyncio.create_task(helper())

    async def main() -> None:
        task = await job()
        over.set()
        with pytest.raises(incumbent.AlreadyReleased):
            await task

    asyncio.run(main())


def test_a_generator_is_refused_for_its_body_would_run_without_the_lease(
    engine: FaultyEngine,
) -> None:
    def rows() -> Iterator[int]:
        yield 1

    async def arows() -> AsyncIterator[int]:
        yield 1

    class Rows:
        def __call__(self) -> Iterator[int]:
            yield 1

    class ARows:
        async def __call__(self) -> AsyncIterator[int]:
            yield 1

    for function in (rows, arows, Rows(), ARows()):
        with pytest.raises(incumbent.ConfigError, match="generator"):
            incumbent.exclusive("a", store=engine)(function)
        with pytest.raises(incumbent.ConfigError, match="generator"):
            incumbent.once("a", per="1h", store=engine)(function)
        with pytest.raises(incumbent.ConfigError, match="generator"):
            incumbent.Jobs(store=engine).every("1s", name="a")(function)


def test_a_coroutine_that_a_blocking_function_returns_is_not_let_out_of_the_lease(
    engine: FaultyEngine,
) -> None:
    async def work() -> None: ...

    @incumbent.exclusive("a", store=engine)
    def begin() -> Any:
        return work()

    with pytest.raises(incumbent.Misuse, match="nothing ran"):
        begin()
    assert incumbent.Lock("a", store=engine).held_by() is None


def ignoring_its_term(begin: Callable[[], object]) -> Callable[[incumbent.Term], object]:
    return lambda _: begin()


def test_what_a_blocking_function_returns_must_not_run_on_without_the_lease(
    engine: FaultyEngine,
) -> None:
    async def arows() -> AsyncIterator[int]:
        yield 1

    class Later:
        def __await__(self) -> Generator[None, None, None]:
            yield

    kinds: dict[str, Callable[[], object]] = {
        "generator": lambda: (row for row in [1]),
        "async_generator": arows().__aiter__,
        "Later": Later,
        "_GeneratorContextManager": contextlib.contextmanager(lambda: (row for row in [1])),
        "_AsyncGeneratorContextManager": contextlib.asynccontextmanager(arows),
        "Future": concurrent.futures.Future,
    }
    for kind, begin in kinds.items():
        with pytest.raises(incumbent.Misuse, match=f"a {kind}, which runs without the lease"):
            incumbent.exclusive("a", store=engine)(begin)()
        with pytest.raises(incumbent.Misuse, match=f"a {kind}, which runs without the lease"):
            incumbent.Election("a", store=engine).run(ignoring_its_term(begin))
    assert incumbent.exclusive("a", store=engine)(lambda: iter([1]))() is not None


def test_a_body_as_a_decorator_refuses_what_would_run_after_it(engine: FaultyEngine) -> None:
    async def work() -> None: ...

    def rows() -> Iterator[int]:
        yield 1

    election = incumbent.Election("a", store=engine)
    bodies = [
        election.lead(),
        election.running(lambda _: None),
        incumbent.Group("g", store=engine).join(),
        incumbent.Shards("s", 2, store=engine).running(lambda _: None),
    ]
    for body in bodies:
        with pytest.raises(incumbent.Misuse, match="take the lease inside of it"):
            body(work)
        with pytest.raises(incumbent.ConfigError, match="take the lease inside of it"):
            body(rows)
    assert election.lead()(lambda: election.is_leader)()


def test_an_object_that_is_called_as_a_coroutine_is_awaited_within_the_lease(
    engine: FaultyEngine,
) -> None:
    class Work:
        async def __call__(self) -> bool:
            return incumbent.Lock("a", store=engine).held_by() is not None

    assert asyncio.run(incumbent.exclusive("a", store=engine)(Work())())
    assert asyncio.run(incumbent.once("a", per="1h", store=engine)(Work())())


def test_a_decorator_without_its_name_is_refused_when_decorating() -> None:
    with pytest.raises(incumbent.ConfigError, match="a lease has a name"):
        incumbent.exclusive(lambda: None)  # type: ignore[call-overload]  # refused at run time too
