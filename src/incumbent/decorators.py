"""`@exclusive` and `@once`: functions that run one at a time, or once, in the whole fleet."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Coroutine, Iterator
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from incumbent import clock
from incumbent.cron.ledger import SlotState
from incumbent.cron.once import OnceRun, begin_once
from incumbent.durations import Duration
from incumbent.errors import ConfigError, NotAcquired
from incumbent.locks.inside import around_call
from incumbent.locks.leases import AsyncLease, Lease, SingleLease
from incumbent.locks.lock import AsyncLock, Lock, SingleLock
from incumbent.locks.options import LockSettings, explain_arguments, require
from incumbent.locks.other_words import refuse_unknown
from incumbent.locks.running import is_async, name_of, refuse_coroutine, refuse_generator
from incumbent.protocol.release import release
from incumbent.stores.names import (
    MARK,
    check_name,
    check_slot,
    escaped,
    is_name,
    is_slot,
    within_limit,
)
from incumbent.stores.plan import run_blocking

if TYPE_CHECKING:
    from incumbent.protocol.port import Port
    from incumbent.runtime.link import StoreLike

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=SingleLock[Any])
P = ParamSpec("P")
R = TypeVar("R")
SettingsFiller = Callable[..., dict[str, str]]
IfHeld = Literal["wait", "raise", "skip"]


class Skipping(Protocol):
    """A decorator; the decorated function returns None if it is not its turn."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


@overload
def exclusive(
    name: str,
    *,
    if_held: Literal["wait", "raise"] = "wait",
    store: StoreLike | None = None,
    namespace: str = "default",
    timeout: Duration | None = None,
    **settings: Unpack[LockSettings],
) -> Callable[[F], F]: ...
@overload
def exclusive(
    name: str,
    *,
    if_held: Literal["skip"],
    store: StoreLike | None = None,
    namespace: str = "default",
    timeout: Duration | None = None,
    **settings: Unpack[LockSettings],
) -> Skipping: ...


@explain_arguments
def exclusive(
    name: str,
    *,
    if_held: IfHeld = "wait",
    store: StoreLike | None = None,
    namespace: str = "default",
    timeout: Duration | None = None,
    **settings: Unpack[LockSettings],
) -> Callable[[F], F] | Skipping:
    """Run the function (or coroutine function) only while it holds the lease `name`.

    `ttl` (15 s): after a crash, how long until another call gets the lease. The other settings are
    those of `Lock`.

    `{argument}` in `name` and in `slot` is replaced by the call's argument of that name. If that
    makes no valid name, or contains "@-", the arguments are escaped as by `safe_name`. `if_held`,
    while another holder has the lease: "wait" (at most `timeout` seconds, then AcquireTimeout),
    "raise" NotAcquired, or "skip" (the call returns None). Raises ConfigError when decorating a
    function that cannot work (a generator, whose body would run without the lease; a parameter that
    the function does not have), or if an argument cannot be filled in; Misuse if the function
    returns a coroutine, generator or Future, which would run without the lease too.
    """
    if not isinstance(name, str):
        raise ConfigError('write @exclusive("name"): a lease has a name', name="name")
    if if_held not in ("wait", "raise", "skip"):
        raise ConfigError(f"if_held={if_held!r}: wait, raise or skip", name="if_held")
    refuse_unknown(settings, LockSettings)
    common = {
        "store": store,
        "namespace": namespace,
        "timeout": timeout if if_held == "wait" else 0,
        **settings,
    }

    def decorate(function: F) -> F:
        refuse_generator(function)
        slot, templates = settings.get("slot"), {"name": name}
        if isinstance(slot, str) and "{" in slot:
            templates["slot"] = slot
        fill = _settings_filler(function, **templates)
        wrap = _wrap_async if is_async(function) else _wrap_sync
        return cast("F", wrap(function, fill, common, skip=if_held == "skip"))

    return decorate


@explain_arguments
def once(
    name: str,
    *,
    per: Duration,
    store: StoreLike | None = None,
    namespace: str = "default",
    **settings: Unpack[LockSettings],
) -> Skipping:
    """Run the function at most once in `per`, by the store's clock, in the whole fleet.

    All other calls return None. The run counts from its start, also if it fails: choose `per`
    shorter than the schedule ("12h" for a nightly job).
    """
    settings["once_per"] = per
    return exclusive(name, if_held="skip", store=store, namespace=namespace, **settings)


def _slot_id(wall: float) -> str:
    from datetime import UTC, datetime

    return f"once/{datetime.fromtimestamp(wall, UTC).isoformat(timespec='milliseconds')[:23]}Z"


def _end_to_record(error: BaseException, lease: SingleLease) -> tuple[SlotState, str]:
    """The state and the reason to record for a call that raised."""
    if lease.valid:
        return SlotState.FAILED, f"{type(error).__name__}: {error}"
    bounded = lease.belief.proof.lost_reason == "at_most_for"
    return (SlotState.TIMED_OUT if bounded else SlotState.LOST), str(error) or type(error).__name__


def _settings_filler(function: Callable[..., Any], **templates: str) -> SettingsFiller:
    """A function that returns a call's settings: `templates` with its arguments filled in."""
    signature = inspect.signature(function)
    for setting, template in templates.items():
        if _is_plain(template):
            check_name(template)
            continue
        check = check_slot if setting == "slot" else check_name
        try:
            check("".join(_pieces_with_argument_names(template, signature, function)))
        except ValueError as error:
            raise _bad_template(setting, template, error) from None
    if all(map(_is_plain, templates.values())):
        return lambda *args, **kwargs: templates

    def filled(*args: Any, **kwargs: Any) -> dict[str, str]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {
            setting: _filled(setting, template, bound.arguments)
            for setting, template in templates.items()
        }

    return filled


def _is_plain(template: str) -> bool:
    return not {"{", "}"} & set(template)


def _filled(setting: str, template: str, arguments: dict[str, Any]) -> str:
    """The template with the arguments filled in: as they are if that makes a name, else escaped."""
    try:
        name = template.format_map(arguments)
        is_valid = is_slot if setting == "slot" else is_name
        if is_valid(name) and MARK not in name:
            return name
        escaped_name = ""
        for literal, field, spec, conversion in Formatter().parse(template):
            escaped_name += literal
            if field is not None:
                convert = f"!{conversion}" if conversion else ""
                escaped_name += escaped(f"{{{field}{convert}:{spec}}}".format_map(arguments))
    except (LookupError, AttributeError, ValueError, TypeError) as error:
        raise _bad_template(setting, template, error) from None
    return within_limit(escaped_name)


def _bad_template(setting: str, template: str, error: Exception) -> ConfigError:
    why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return ConfigError(f"the {setting} {template!r} cannot be filled in: {why}", name=setting)


def _pieces_with_argument_names(
    template: str, signature: inspect.Signature, function: Callable[..., Any]
) -> Iterator[str]:
    """The template's pieces; each field is replaced by its argument's name.

    Raises ValueError for a field that cannot be filled in.
    """
    for literal, field, spec, conversion in Formatter().parse(template):
        yield literal
        if field is None:
            continue
        argument = re.split(r"[.\[]", field)[0]
        if not argument or argument.isdecimal():
            raise ValueError(f"{{{field}}} has a place and no name: write {{argument}}")
        if argument not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ValueError(f"{argument} is no parameter of {name_of(function)} (it has: {known})")
        if conversion not in (None, "", "s", "r", "a"):
            raise ValueError(f"!{conversion} is no conversion")
        yield argument
        # A format may name arguments too; its effect is known only once they have values.
        for _ in _pieces_with_argument_names(spec or "", signature, function):
            pass


def _make_lock(kind: Callable[..., L], filled: dict[str, str], common: Any) -> L:
    """The lock of one call. Raises ConfigError if its store lacks a feature that it needs."""
    lock = kind(**{**common, **filled})
    if "once_per" in common:
        require(lock._link.engine.capabilities, "once_per", "slots", "fields")
    return lock


def _wrap_sync(function: Any, fill: SettingsFiller, common: Any, *, skip: bool) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return refuse_coroutine(function(*args, **kwargs), function, "decorate an `async def`")

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            lease = _make_lock(Lock, fill(*args, **kwargs), common).acquire()
        except NotAcquired:
            if skip:
                return None
            raise
        with lease, around_call(lease):
            if "once_per" not in common:
                return call(*args, **kwargs)
            work = functools.partial(call, *args, **kwargs)
            return _recorded(lease, name_of(function), work, skip=skip)

    return wrapper


def _recorded(lease: Lease, function_name: str, call: Callable[[], Any], *, skip: bool) -> Any:
    """Run `call`, and record its beginning and its end in the ledger."""
    wall = clock.wall()
    try:
        # The record before the call: if it cannot be written, nothing may run.
        once = begin_once_blocking(lease, wall, _slot_id(wall), function_name)
    except BaseException:
        # Nothing ran: free the slot for others.
        run_blocking(_undo(lease, lease._link.port))
        raise
    if once is None:
        return _refuse_second_run(lease, skip=skip)
    try:
        result = call()
    except BaseException as error:
        state, why = _end_to_record(error, lease)
        # Before the lease is released by its body: the store takes the end only from its holder.
        run_blocking(once.end(state, clock.wall(), why=why))
        raise
    run_blocking(once.succeed(clock.wall()))
    return result


async def _undo(lease: SingleLease, port: Port) -> None:
    """Give the lease back, and its slot."""
    # Nothing works under the lease: its loss must not end the process.
    lease._cancel_exit()
    try:
        await release(port, lease._claim, undo_slot=True)
    finally:
        lease._link.keeper.disarm(lease._claim)


def _refuse_second_run(lease: SingleLease, *, skip: bool) -> None:
    if not skip:
        message = (
            f"{lease.name!r} ran before: the ledger has a run of this slot, and a slot is used"
            " only once"
        )
        raise NotAcquired(message, name=lease.name, reason="used")


def begin_once_blocking(lease: Lease, wall: float, stamp: str, what: str) -> OnceRun | None:
    """`cron.once.begin_once` for blocking code."""
    return run_blocking(begin_once(lease._link.port, lease._claim, wall, stamp, what))


def _wrap_async(function: Any, fill: SettingsFiller, common: Any, *, skip: bool) -> Any:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            lease = await _make_lock(AsyncLock, fill(*args, **kwargs), common).acquire()
        except NotAcquired:
            if skip:
                return None
            raise
        async with lease:
            with around_call(lease):
                if "once_per" not in common:
                    return await function(*args, **kwargs)
                work = functools.partial(function, *args, **kwargs)
                return await _recorded_async(lease, name_of(function), work, skip=skip)

    return wrapper


async def _recorded_async(
    lease: AsyncLease, function_name: str, call: Callable[[], Any], *, skip: bool
) -> Any:
    port, wall = lease._link.async_port(), clock.wall()
    try:
        once = await begin_once(port, lease._claim, wall, _slot_id(wall), function_name)
    except BaseException:
        # Nothing ran, also if it was cancelled: free the slot for others.
        await _undo(lease, port)
        raise
    if once is None:
        return _refuse_second_run(lease, skip=skip)
    try:
        result = await call()
    except BaseException as error:
        state, why = _end_to_record(error, lease)
        # A body that is cancelled at the renew deadline has its grace left: enough for this.
        await once.end(state, clock.wall(), why=why)
        raise
    await once.succeed(clock.wall())
    return result
