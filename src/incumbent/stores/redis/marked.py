"""What `doctor` says of a server's marker and of its replicas' resync; it writes nothing. Pure."""

from __future__ import annotations

from typing import Final

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import StoreUnavailable
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.incarnation import LOOK_EVERY, read_mark
from incumbent.stores.redis.resp import Program, Step, pack
from incumbent.stores.redis.server import read_facts
from incumbent.stores.restart import wait_after_restart

__all__ = ["look_at_marker", "look_at_resync"]

Finding = tuple[str, str, str]

_RESYNC_LEAST: Final = 2
"""Seconds of repl-diskless-sync-delay with which no resync ends between two looks at a server."""


def look_at_marker(site: Site, ttl: float) -> Program[list[Finding]]:
    """Whether it grants by now, and for how long it would wait after a restart."""
    keys = site.marker.keys
    reads = [pack("GET", key) for key in keys]
    info, time, *said = yield Step(pack("INFO") + pack("TIME") + b"".join(reads), 2 + len(keys))
    if not isinstance(info, bytes) or not isinstance(time, list):
        raise answered_error(str(info), site.where)
    facts, now = read_facts(info), int(time[0]) + int(time[1]) / 1e6
    try:
        found = [read_mark(raw, site.where, key) for key, raw in zip(keys, said, strict=False)]
    except StoreUnavailable as error:
        return [("error", str(error), "stop the instances of the other version first")]
    start = int((now - facts.uptime) * 1e6)
    mark = next((it for it in found if it is not None and it.is_of(facts, start)), None)
    longest = max((it.longest / 1000 for it in found if it), default=0.0)
    wait = wait_after_restart(site.restart_wait, ttl, longest)
    if mark is None:
        what = "new, restarted, promoted or emptied since it was last asked for a lease"
        left = wait
    else:
        age = max(0.0, min(now - mark.since / 1e6, clock.wall() - mark.seen / 1e6))
        what = f"the same server with the same data for {say_seconds(float(int(age)))}"
        left = wait - age
    what = f"{what}, restart_wait {say_seconds(wait)}"
    if left > 0:
        todo = f"wait {say_seconds(left)} from the first request on, or name restart_wait=0"
        return [
            ("warning", f"{what}: it grants nothing yet", todo),
            *_about_wait(site, longest, ttl),
        ]
    return [("ok", what, ""), *_about_wait(site, longest, ttl)]


def _about_wait(site: Site, longest: float, ttl: float) -> list[Finding]:
    """What a restart without data costs, of which nobody can learn how long the ttls were."""
    believed = max(longest, ttl)
    after_a_wipe = TTL_DEFAULT if site.restart_wait is None else site.restart_wait
    if believed <= after_a_wipe:
        return []
    what = (
        f"after a wipe it grants {say_seconds(after_a_wipe)} later, and holders may believe for"
        f" {say_seconds(believed)}"
    )
    return [("warning", what, f"name restart_wait={say_seconds(believed)}")]


def look_at_resync() -> Program[list[Finding]]:
    """Findings for `doctor`: how soon a master that becomes a replica has its new master's data."""
    info, said = yield Step(pack("INFO") + pack("CONFIG", "GET", "repl-diskless-sync*"), 2)
    settings = dict(zip(said[::2], said[1::2], strict=False)) if isinstance(said, list) else {}
    if b"repl-diskless-sync" not in settings or not read_facts(info).replicas:
        return []
    delay = int(settings.get(b"repl-diskless-sync-delay", b"0"))
    diskless = settings[b"repl-diskless-sync"] == b"yes"
    if diskless and delay >= _RESYNC_LEAST:
        return []
    what = f"repl-diskless-sync-delay {delay}" if diskless else "repl-diskless-sync no"
    return [
        (
            "warning",
            f"{what}: a switchover there and back in less than {LOOK_EVERY} s may go unnoticed",
            f"set repl-diskless-sync yes, and repl-diskless-sync-delay {_RESYNC_LEAST} or more",
        )
    ]
