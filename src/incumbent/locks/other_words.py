"""Messages with our word, for users of other libraries or of the wrong side (blocking, asyncio)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping
from typing import Any, Final, NoReturn

from incumbent.errors import ConfigError, Misuse
from incumbent.printable import nearest

_TIMEOUT: Final = "`timeout` says how many seconds to wait (0: try once)"
_TTL: Final = "`ttl` says after how many seconds without a renewal others get the lease"
_RENEWED: Final = "a lease is always renewed, for as long as it is held; `at_most_for` ends it"
_PERMITS: Final = "`permits` of a Semaphore says how many may hold it at once"
_PER: Final = "`per` of @once says in which time it runs at most once"
_NAMED: Final = "each lease has a `fencing_token` and an id of its own; `holder` is its name"
# redis-py, python-redis-lock, aioredlock, pottery, sherlock, Redisson, ShedLock, client-go, kazoo.
_OTHER_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("blocking", "block", "wait"), _TIMEOUT),
    **dict.fromkeys(("blocking_timeout", "acquire_timeout", "wait_time", "wait_timeout"), _TIMEOUT),
    **dict.fromkeys(("max_wait", "retry_times", "retry_count", "retries"), _TIMEOUT),
    **dict.fromkeys(("expire", "expiry", "expires", "expiration", "lease_time"), _TTL),
    **dict.fromkeys(("lease_duration", "lock_timeout", "auto_release_time", "px", "ex"), _TTL),
    **dict.fromkeys(("renew_deadline", "retry_period", "heartbeat", "sleep"), _TTL),
    **dict.fromkeys(("auto_renewal", "auto_renew", "auto_extend", "extend", "renew"), _RENEWED),
    **dict.fromkeys(("lock_at_most_for", "max_hold"), "`at_most_for` is our word for it"),
    **dict.fromkeys(("lock_at_least_for", "min_hold"), "`at_least_for` is our word for it"),
    **dict.fromkeys(("id", "identity", "token", "owner"), _NAMED),
    **dict.fromkeys(("redis", "client", "connection", "url", "dsn"), "`store` says where"),
    **dict.fromkeys(("value", "limit", "count", "max", "max_count", "capacity", "size"), _PERMITS),
    **dict.fromkeys(("every", "interval", "period", "within"), _PER),
    **dict.fromkeys(("key", "resource", "lock_name", "lock_id"), "`name` is what is leased"),
    **dict.fromkeys(("keys", "resources"), "`names` of a MultiLock are those to take together"),
    **dict.fromkeys(("shards", "partitions"), "`count` of Shards says how many there are"),
    "timezone": "`tz` is the time zone of a schedule",
    **dict.fromkeys(("prefix", "key_prefix"), "`namespace` keeps the names of programs apart"),
    **dict.fromkeys(("thread_local", "thread_safe"), "many threads may use one lock"),
}


def our_name_for(word: str) -> str:
    """Our name for another library's setting; `word` itself if there is none."""
    _, found, rest = _OTHER_WORDS.get(word, "").partition("`")
    return rest.partition("`")[0] if found else word


def refuse_unknown(settings: Collection[str], kind: type) -> None:
    """Raise ConfigError for a setting that this `kind` of settings does not have."""
    known = sorted(kind.__annotations__)
    for name in sorted(set(settings) - set(known)):
        raise ConfigError(
            f"unknown setting {name!r}{hint_for(name, known)}; known are {', '.join(known)}",
            name=name,
        )


def refuse_words(words: Collection[str], method: str) -> None:
    """Raise ConfigError if a method that takes `timeout` alone was given other words."""
    for name in sorted(words):
        raise ConfigError(
            f"{method}() has no argument {name!r}{hint_for(name, ['timeout'])}", name=name
        )


def hint_for(name: str, known: Collection[str]) -> str:
    """The end of a message about a wrong `name`: what was meant; "" if that is not known."""
    if name in _OTHER_WORDS:
        return f": {_OTHER_WORDS[name]}"
    meant = nearest(name, [*known, "timeout", "store", "namespace"])
    return f": did you mean {meant!r}?" if meant else ""


def refuse_wrong_with(cls: type) -> None:
    """Make the wrong `with` (blocking or async) raise an error that names the right class."""
    is_async = hasattr(cls, "__aenter__")
    if is_async == hasattr(cls, "__enter__"):
        return
    enter, leave = ("__enter__", "__exit__") if is_async else ("__aenter__", "__aexit__")
    right, other = ("async with", "with") if is_async else ("with", "async with")

    def refuse(self: object, *_: object) -> NoReturn:
        name = type(self).__name__
        twin = name.removeprefix("Async") if is_async else f"Async{name}"
        raise Misuse(f"{name} needs `{right}`; where you write `{other}`, use {twin}")

    setattr(cls, enter, refuse)
    setattr(cls, leave, refuse)


def refuse_copy(of: object) -> NoReturn:
    raise TypeError(
        f"a {type(of).__name__} is of this process and cannot be copied or pickled: hand on the"
        " name and the URL of the store, and make another there"
    )


def warn_in_loop(waits: str, instead: str) -> None:
    """Warn if this thread runs an event loop, which stands still while a blocking call waits."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    warnings.warn(
        f"{waits} waits in a running event loop, and all its tasks stand still meanwhile: use"
        f" {instead}",
        RuntimeWarning,
        stacklevel=_outside(),
    )


def _outside() -> int:
    """The `stacklevel` of the nearest frame that is not of this package."""
    import inspect

    here = inspect.currentframe()
    level, frame = 1, here.f_back if here is not None else None
    while frame is not None and frame.f_globals.get("__name__", "").startswith("incumbent."):
        level, frame = level + 1, frame.f_back
    return level
