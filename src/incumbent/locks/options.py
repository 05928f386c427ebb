"""The settings of a lock, checked once when it is built."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import cache, lru_cache, wraps
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, cast

from incumbent.durations import DAY, Duration, parse_duration, say_seconds
from incumbent.errors import ConfigError, LeaseLost, StoreError
from incumbent.locks.other_words import hint_for, refuse_unknown
from incumbent.model import ONCE, UNLIMITED, Ask, Capabilities, Queue, Slot
from incumbent.policy import TTL_DEFAULT, Policy, make_policy
from incumbent.protocol.claim import LeaseRequest
from incumbent.stores.names import check_slot, make_key

if TYPE_CHECKING:
    from incumbent.election import Priority
    from incumbent.model import Key

F = TypeVar("F", bound=Callable[..., Any])
OnLost = Callable[[LeaseLost], None]
OnTrouble = Callable[[StoreError], None]
IfLost = Literal["raise", "exit"]
_Others: TypeAlias = tuple[Ask, Ask, Policy, float, float]

_JOB_RECORD = 30 * DAY
"""Seconds for which the store keeps the record of a lock with a slot or at_least_for."""
_LOCK_RECORD = DAY
"""Likewise of a plain lock."""
# By so much a first waiter that died without a word delays those behind it.
_HEARTBEAT_MOST = 5.0
_POLL_EVERY = 0.1
"""Seconds between two requests of a waiter while a foreign client holds the lease."""
PRIORITY_MOST = 1_000_000
PERMITS_MOST = 10_000
"""The most permits: more would make each take slow."""


class LockSettings(TypedDict, total=False):
    """Keyword settings of every lock; durations are 15.0, "15s" or timedelta.

    `ttl` (15 s): the time to detect a crash, not the length of the work. `grace`: the time for the
    clean-up at the end. `lock_delay` (0): how much longer than the ttl the name stays closed after
    a holder that did not release it. `policy`: an `incumbent.Policy`, which sets these three and
    all other times. `holder`: the name of this instance in `status` and logs. `at_most_for`: the
    longest time that a hung holder keeps the lease. `at_least_for`: the shortest time that the name
    stays closed, from the grant. `once_per`: at most one start in that time, by the store's clock.
    `slot`: the work that `once_per` counts, if not the name's own: any printable ID of at most 200
    characters, such as another scheduler's. `on_lost`: called with the LeaseLost, in the one thread
    of all callbacks: one that blocks delays the others. `on_trouble`: called there with the
    StoreError when renewals begin to fail while the lease is still proved, once until one succeeds
    again. `if_lost`: "raise" at the end of the body (default), or "exit": end the process at once
    with code 123, min(0.1 s, grace / 2) before the proof runs out (C code that keeps the
    interpreter delays it: see `incumbent run`); a loss that only the release finds is raised.
    `fair`: waiters get the lease in the order of arrival; else others may overtake a few times in a
    row. `reentrant`: the thread or task that holds a Lock may enter it again at once.
    """

    ttl: Duration
    grace: Duration | None
    lock_delay: Duration
    policy: Policy | None
    holder: str | None
    at_most_for: Duration | None
    at_least_for: Duration | None
    once_per: Duration | None
    slot: str
    on_lost: OnLost | None
    on_trouble: OnTrouble | None
    if_lost: IfLost
    fair: bool
    reentrant: bool


def explain_arguments(call: F) -> F:
    """Make calls with other arguments than `call` takes raise errors that name ours.

    Python's own TypeError names an internal class. Raises ConfigError for another library's word.
    """

    @wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except TypeError:
            _refuse_arguments(call, args, kwargs)
            raise

    return checked  # type: ignore[return-value]  # it takes what `call` takes


def _refuse_arguments(call: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise an error if `call` does not take these arguments."""
    taken = inspect.signature(call).parameters
    try:
        inspect.signature(call).bind(*args, **kwargs)
    except TypeError as error:
        what = type(args[0]).__name__ if call.__name__ == "__init__" else call.__name__
        for name in sorted(kwargs.keys() - taken.keys() - LockSettings.__annotations__.keys()):
            if hint := hint_for(name, taken):
                message = f"{what}() has no argument {name!r}{hint}"
                raise ConfigError(message, name=name) from None
        form = ", ".join(
            f"{it.name}=..." if it.kind is it.KEYWORD_ONLY else it.name
            for it in taken.values()
            if it.default is it.empty and it.kind is not it.VAR_KEYWORD and it.name != "self"
        )
        raise TypeError(
            f"{what}(): {error}: write {what}({form}), and settings with their names"
        ) from None


@cache
def default_holder() -> str:
    """INCUMBENT_HOLDER, as it was at the first call in this process, or the host and process."""
    return os.environ.get("INCUMBENT_HOLDER") or f"{os.uname().nodename}:{os.getpid()}"


_inherited: set[str] = set()
"""The default holders of the processes that this one was forked from."""


def renamed_after_fork(wanted: LeaseRequest) -> LeaseRequest:
    """`wanted` in this process's name, if it was made before a fork and in the default name."""
    if not _inherited or wanted.holder not in _inherited:
        return wanted
    return wanted.asking(holder=default_holder())


def _forked() -> None:
    if default_holder.cache_info().currsize:
        _inherited.add(default_holder())
        # What is cached is the parent's name, so it is noted before it is forgotten.
        default_holder.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def require(can: Capabilities, what: str, *parts: Literal["slots", "fields", "notices"]) -> None:
    """Raise ConfigError, with alternatives, if the store lacks one of the `parts` of `what`."""
    lacking = [part for part in parts if not getattr(can, part)]
    if lacking:
        raise ConfigError(
            f"{what}: this store has no {' and no '.join(lacking)}; use sqlite:, redis:, etcd:,"
            " postgresql: or mysql: for it (plain locks may stay on this store)",
            name=what,
        )


def policy_from(settings: LockSettings) -> Policy:
    """The given `policy`, or one of `ttl`, `grace` and `lock_delay`. Raises ConfigError."""
    policy, grace = settings.get("policy"), settings.get("grace")
    if policy is None:
        delay = settings.get("lock_delay", 0.0)
        return make_policy(settings.get("ttl", TTL_DEFAULT), grace=grace, lock_delay=delay)
    if not isinstance(policy, Policy):
        raise ConfigError(f"policy: a Policy, not {type(policy).__name__}", name="policy")
    if "lock_delay" in settings:
        raise ConfigError("policy sets lock_delay too: give it only there", name="policy")
    if "ttl" in settings or grace is not None:
        raise ConfigError("policy sets ttl and grace too: give them only there", name="policy")
    return policy


def rank_from(
    priority: object, step_down_after: Duration | None, wanted: LeaseRequest, can: Capabilities
) -> Priority | None:
    """The rank of a candidate for `wanted`; None without a priority. Raises ConfigError."""
    if priority is None:
        if step_down_after is not None:
            raise ConfigError("step_down_after: needs priority", name="step_down_after")
        return None
    # True is an int in Python, but nobody means a priority by it.
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MOST:
        raise ConfigError(
            f"priority={priority!r:.40}: a whole number from 0 to {PRIORITY_MOST}", name="priority"
        )
    require(can, "priority", "fields", "notices")
    if not (can.candidates and can.reservations):
        raise ConfigError("priority: this store keeps no list of candidates", name="priority")
    ttl, least = wanted.policy.ttl, wanted.at_least_for
    given = 2 * ttl if step_down_after is None else step_down_after
    after = parse_duration(given, "step_down_after", least=ttl)
    if least > after or wanted.slot:
        other = "once_per" if wanted.slot else f"at_least_for={say_seconds(least)}"
        raise ConfigError(
            f"{other}: after step_down_after={say_seconds(after)} the name would be closed to the"
            " candidate of higher priority too",
            name="step_down_after",
        )
    # Imported only here: most locks are made, held and released without an election.
    from incumbent.election import Priority

    return Priority(priority, after)


def overruled(settings: LockSettings, by: LockSettings) -> LockSettings:
    """`settings` overruled by `by`; a `policy` excludes `ttl`, `grace` and `lock_delay`."""
    kept = settings.copy()
    if by.get("policy") is not None:
        kept.pop("ttl", None)
        kept.pop("grace", None)
        kept.pop("lock_delay", None)
    elif "ttl" in by or "lock_delay" in by or by.get("grace") is not None:
        kept.pop("policy", None)
    return {**kept, **by}


def parse_timeout(timeout: Duration | None) -> float | None:
    """Seconds to wait for a lease; None: for ever, 0: try once."""
    if timeout is True or timeout is False or timeout == -1:
        # As callers of the standard library's locks write `blocking` and `timeout`.
        raise ConfigError(
            f"timeout={timeout}: write 0 to try once, None to wait for ever", name="timeout"
        )
    return None if timeout is None else parse_duration(timeout, "timeout")


def lease_request(
    namespace: str,
    name: str,
    can: Capabilities,
    permits: int | None = None,
    /,
    **settings: Unpack[LockSettings],
) -> LeaseRequest:
    """Check the settings against each other and the store's features. Raises ConfigError.

    `permits`: see Ask.
    """
    holder = settings.pop("holder", None)
    settings.pop("on_lost", None)
    settings.pop("on_trouble", None)
    if holder is None:
        holder = default_holder()
    try:
        return _cached_request(namespace, name, can, holder, permits, **settings)
    except TypeError:
        # A setting that cannot be hashed has a wrong type: the checks say which one.
        key = make_key(namespace, name)
        return _make_request(
            key, can, *_check_settings.__wrapped__(can, holder, permits, **settings)
        )


# Cached by settings, because many programs make a new Lock for each acquire.
@lru_cache(maxsize=256, typed=True)
def _cached_request(
    namespace: str, name: str, can: Capabilities, holder: str, permits: int | None, /, **given: Any
) -> LeaseRequest:
    return _make_request(
        make_key(namespace, name), can, *_check_settings(can, holder, permits, **given)
    )


def _make_request(key: Key, can: Capabilities, *others: *_Others) -> LeaseRequest:
    # A foreign client publishes nothing when it releases, so where waiters rely on messages they
    # have to poll. A watch sees the release anyway.
    every = _POLL_EVERY if can.waits == "pubsub" else inf
    return LeaseRequest(key, *others, poll_every=every)


# Cached without the name as well, because some programs make locks on ten thousand names.
@lru_cache(maxsize=256, typed=True)
def _check_settings(
    can: Capabilities, holder: str, permits: int | None, /, **given: Hashable
) -> _Others:
    """The fields of LeaseRequest after the key."""
    refuse_unknown(given, LockSettings)
    settings = cast("LockSettings", given)
    if settings.get("if_lost", "raise") not in ("raise", "exit"):
        raise ConfigError(f"if_lost={settings['if_lost']!r}: raise or exit", name="if_lost")
    policy = policy_from(settings)
    _check_ttl(policy, can)
    if permits is not None:
        _check_permits(permits, settings, can)
    slot = _slot(settings, can)
    if slot is not None and settings.get("reentrant"):
        raise ConfigError(
            "reentrant=True and once_per: a slot that is used up cannot be entered again",
            name="reentrant",
        )
    at_least_for = _optional(settings.get("at_least_for"), "at_least_for", 0.0)
    at_most_for = _optional(settings.get("at_most_for"), "at_most_for", inf)
    if at_most_for < at_least_for:
        raise ConfigError(
            f"at_least_for={say_seconds(at_least_for)} is longer than"
            f" at_most_for={say_seconds(at_most_for)}",
            name="at_least_for",
        )
    keep_record = _JOB_RECORD if slot or at_least_for else _LOCK_RECORD
    unqueued = Ask(
        policy.kept_for,
        _holder(holder),
        permits,
        slot=slot,
        keep_record=keep_record,
        lock_delay=policy.lock_delay,
    )
    queue = _queue(policy, slot, can, fair=settings.get("fair", False))
    return unqueued, replace(unqueued, queue=queue), policy, at_most_for, at_least_for


def _check_permits(permits: int, settings: LockSettings, can: Capabilities) -> None:
    if not can.shared:
        raise ConfigError(
            "permits: this store has leases of one holder only; use redis:, postgresql:,"
            " mysql:, etcd:, sqlite: or memory: for a semaphore, a read-write lock or an election"
            " with permits",
            name="permits",
        )
    if permits == UNLIMITED and not can.queue:
        raise ConfigError(
            "a read-write lock needs a line of waiters, or readers would starve writers, and this"
            " store keeps none; use redis:, postgresql:, mysql:, etcd:, sqlite: or memory:",
            name="fair",
        )
    for name in ("once_per", "slot", "at_least_for"):
        if settings.get(name) is not None:
            raise ConfigError(
                f"{name}: it closes a name to everybody, and a shared lease has others inside; use"
                " a Lock for it",
                name=name,
            )


def _optional(value: Duration | None, what: str, default: float) -> float:
    return default if value is None else parse_duration(value, what, least=0.001)


def _check_ttl(policy: Policy, can: Capabilities) -> None:
    if not can.ttl_min <= policy.ttl <= policy.kept_for <= can.ttl_max:
        delay = policy.lock_delay
        more = f" + lock_delay={say_seconds(delay)}" if delay else ""
        raise ConfigError(
            f"ttl={say_seconds(policy.ttl)}{more}: this store takes {say_seconds(can.ttl_min)} to"
            f" {say_seconds(can.ttl_max)}",
            name="lock_delay" if delay and policy.ttl <= can.ttl_max else "ttl",
        )


def _slot(settings: LockSettings, can: Capabilities) -> Slot | None:
    once_per = settings.get("once_per")
    if once_per is None:
        if settings.get("slot") is not None:
            raise ConfigError(
                "slot: needs once_per, which says for how long the slot stays used", name="slot"
            )
        return None
    require(can, "once_per", "slots")
    slot = check_slot(settings["slot"]) if "slot" in settings else ONCE
    return Slot(slot, parse_duration(once_per, "once_per", least=0.001))


def _queue(policy: Policy, slot: Slot | None, can: Capabilities, *, fair: bool) -> Queue | None:
    if fair and not can.queue:
        raise ConfigError(
            "fair=True: this store keeps no line of waiters; leave it out, or use a store that"
            " does (redis:, sqlite:, postgresql:, mysql:, etcd: and memory: do)",
            name="fair",
        )
    if fair and slot is not None:
        raise ConfigError(
            "fair=True and once_per: who may start is decided by the slot, not by a line",
            name="fair",
        )
    if not (can.queue or can.turns) or slot is not None:
        # A waiter for a used slot would stand before waiters that could have the lease at once.
        return None
    return Queue(min(_HEARTBEAT_MOST, policy.ttl / 3), fair)


def _holder(holder: object) -> str:
    if not isinstance(holder, str):
        raise ConfigError(f"holder: a text, not {type(holder).__name__}", name="holder")
    if not 1 <= len(holder) <= 200 or not holder.isprintable() or " " in holder:
        raise ConfigError(
            f"holder={holder[:60]!r}: 1 to 200 printable characters without blanks", name="holder"
        )
    return holder
