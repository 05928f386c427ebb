"""`@exclusive` and `@once`: a function that one caller of the fleet runs at a time, or once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar, Unpack, cast

from incumbent.durations import Duration
from incumbent.errors import ConfigError, NotAcquired
from incumbent.options import LockSettings

__all__ = ["exclusive", "once"]

F = TypeVar("F", bound=Callable[..., Any])
IfHeld = Literal["wait", "raise", "skip"]


def exclusive(
    name: str,
    *,
    if_held: IfHeld = "wait",
    store: Any = None,
    namespace: str = "default",
    timeout: Duration | None = None,
    **settings: Unpack[LockSettings],
) -> Callable[[F], F]:
    """Run the function (or coroutine function) only while it holds the lease `name`.

    `{argument}` in `name` is replaced by the call's argument of that name. While another holds it:
    "wait" (at most `timeout` seconds, then AcquireTimeout), "raise" NotAcquired, or "skip": the
    call returns None. Raises ConfigError when decorating what cannot work, or when an argument
    does not make a valid name.
    """
    if if_held not in ("wait", "raise", "skip"):
        raise ConfigError(f"if_held={if_held!r}: wait, raise or skip", name="if_held")
    common = {
        "store": store,
        "namespace": namespace,
        "timeout": timeout if if_held == "wait" else 0,
        **settings,
    }

    def decorate(function: F) -> F:
        namer = _namer(name, function)
        wrap = _wrap_async if inspect.iscoroutinefunction(function) else _wrap_sync
        return cast("F", wrap(function, namer, common, skip=if_held == "skip"))

    return decorate


def once(
    name: str,
    *,
    per: Duration,
    store: Any = None,
    namespace: str = "default",
    **settings: Unpack[LockSettings],
) -> Callable[[F], F]:
    """Run the function at most once in `per`, by the store's clock, in the whole fleet.

    A call that is not the one returns None. The run counts from its start and whatever comes of it:
    choose `per` shorter than the schedule ("12h" for a nightly job).
    """
    settings["once_per"] = per
    return exclusive(name, if_held="skip", store=store, namespace=namespace, **settings)


def _namer(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    if "{" not in template:
        return lambda *args, **kwargs: template
    signature = inspect.signature(function)

    def name_of(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        try:
            return template.format_map(bound.arguments)
        except (KeyError, IndexError, AttributeError) as error:
            raise ConfigError(f"the name {template!r} needs an argument {error}") from error

    return name_of


def _wrap_sync(function: Any, namer: Callable[..., str], common: Any, *, skip: bool) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        from incumbent.sync import Lock

        try:
            lease = Lock(namer(*args, **kwargs), **common).acquire()
        except NotAcquired:
            if skip:
                return None
            raise
        with lease:
            return function(*args, **kwargs)

    return wrapper


def _wrap_async(function: Any, namer: Callable[..., str], common: Any, *, skip: bool) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        from incumbent.aio import AsyncLock

        try:
            lease = await AsyncLock(namer(*args, **kwargs), **common).acquire()
        except NotAcquired:
            if skip:
                return None
            raise
        async with lease:
            return await function(*args, **kwargs)

    return wrapper
