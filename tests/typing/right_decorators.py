"""`@exclusive` and `@once` keep parameters, methods and coroutines, and say where None may come."""

# pyright: strict

from collections.abc import Coroutine
from typing import Any, assert_type

import incumbent


@incumbent.exclusive("order:{order_id}")
def ship(order_id: int, *, fast: bool = False) -> str:
    return f"{order_id} {fast}"


@incumbent.exclusive("report", if_held="raise", timeout=5, ttl="20s")
async def report(day: str) -> list[str]:
    return [day]


@incumbent.exclusive("order:{order_id}", if_held="skip")
def ship_or_skip(order_id: int, *, fast: bool = False) -> str:
    return f"{order_id} {fast}"


@incumbent.exclusive("report", if_held="skip")
async def report_or_skip(day: str) -> list[str]:
    return [day]


@incumbent.once("nightly", per="12h")
def nightly() -> int:
    return 1


@incumbent.once("hourly", per="1h", store="memory:")
async def hourly(scale: float) -> int:
    return round(scale)


class Shop:
    @incumbent.exclusive("shop:{order_id}", if_held="skip")
    def close(self, order_id: int) -> str:
        return str(order_id)

    @incumbent.exclusive("shop:{order_id}")
    async def open(self, order_id: int) -> str:
        return str(order_id)

    @incumbent.once("tidy", per="1d")
    async def tidy(self, *shelves: str) -> str:
        return "".join(shelves)

    @staticmethod
    @incumbent.once("count", per="1d")
    def count(of: str) -> int:
        return len(of)


def blocking(shop: Shop) -> None:
    assert_type(ship(7, fast=True), str)
    assert_type(ship_or_skip(7, fast=True), str | None)
    assert_type(nightly(), int | None)
    assert_type(shop.close(3), str | None)
    assert_type(Shop.count("x"), int | None)
    total = nightly()
    if total is not None:
        assert_type(total + 1, int)


async def asynchronous(shop: Shop) -> None:
    assert_type(await report("monday"), list[str])
    assert_type(await report_or_skip("monday"), list[str] | None)
    on_its_way = report_or_skip("monday")
    await assert_type(on_its_way, Coroutine[Any, Any, list[str] | None])
    assert_type(await hourly(1.5), int | None)
    assert_type(await shop.open(3), str)
    assert_type(await shop.tidy("a", "b"), str | None)
