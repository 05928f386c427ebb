"""Functions that a lease is taken around, and those whose call does none of their work."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from incumbent.errors import ConfigError, Misuse

V = TypeVar("V")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine: also for objects with an `async def __call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its kind is asked, not whether it is
    )


def refuse_generator(function: Callable[..., Any]) -> None:
    """Raises ConfigError for a generator function: its body runs when the lease is given back."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"{name_of(function)} is a generator: its body would run only when it is iterated,"
            " without the lease; take the lease inside of it",
            name="function",
        )


def refuse_async(function: Callable[..., Any], advice: str) -> None:
    """Raises Misuse for a coroutine function where blocking code calls it, else as above."""
    refuse_generator(function)
    if is_async(function):
        raise Misuse(f"{name_of(function)} is a coroutine function: {advice}")


def not_deferred(value: V, function: Callable[..., Any], advice: str) -> V:
    """`value`, which a blocking function returned. Raises Misuse if it is work still to be done."""
    if inspect.iscoroutine(value):
        value.close()
        raise Misuse(f"{name_of(function)} returned a coroutine, of which nothing ran: {advice}")
    return value


def awaitable(value: Awaitable[V], function: Callable[..., Any], advice: str) -> Awaitable[V]:
    """`value`, if it can be awaited. Raises Misuse if it is what a blocking function returned."""
    if not isinstance(value, Awaitable):
        raise Misuse(f"{name_of(function)} returned nothing to await: {advice}")
    return value


def name_of(function: Callable[..., Any]) -> str:
    """For messages."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__
