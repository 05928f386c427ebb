"""What a server says of itself when a connection is made, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from incumbent.durations import say_seconds
from incumbent.errors import StoreUnavailable
from incumbent.stores.redis.errors import Demoted, answered_error
from incumbent.stores.redis.resp import Program, Script, Step, pack

__all__ = ["Facts", "admit", "diagnosis", "greeting", "read_facts"]

Finding = tuple[str, str, str]

_INFO: Final = pack("INFO")
_PING: Final = pack("PING")
_PROMOTED: Final = Script("promoted")
_PROMOTED_KEY: Final = "incumbent:{incumbent}:promoted"
"""Where clients note when they first saw a promoted replica as the master."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The part of INFO that a lease depends on. `uptime`: whole seconds, as the server counts.

    `promoted`: the replication id of a master that was a replica before, else ""; `master_for`:
    seconds for which it certainly is one; `run`, `replication`: ids of this run of the process, and
    of the history of its data, "" where it says none.
    """

    epoch: str
    uptime: int
    role: str
    version: str
    product: str
    maxmemory: int
    policy: str
    aof: bool
    replicas: int = 0
    promoted: str = ""
    master_for: float = inf
    run: str = ""
    replication: str = ""

    @property
    def evicts(self) -> bool:
        """Whether it may delete a lease to make room."""
        return self.maxmemory > 0 and self.policy != "noeviction"

    def born(self, received: float) -> float:
        """The latest instant at which it can have become what it is, if this arrived at `received`.

        Its uptime is a difference of two wall clock readings, each cut to whole seconds, so it may
        be up to a second too large.
        """
        return received - min(max(0, self.uptime - 1), self.master_for)


def read_facts(text: bytes) -> Facts:
    """Read the answer to INFO."""
    said = dict(
        line.split(":", 1)
        for line in text.decode("utf-8", "replace").splitlines()
        if ":" in line and not line.startswith("#")
    )
    # It is set by promotion alone (and by a restart from a snapshot, where waiting is right too).
    before = said.get("master_replid2", "").strip("0")
    promoted = said.get("master_replid", "") if before else ""
    return Facts(
        # A master that was a replica in between is another incarnation of the same process.
        epoch=said.get("run_id", "") + (f":{promoted}" if promoted else ""),
        uptime=_number(said, "uptime_in_seconds"),
        role=said.get("role", "master"),
        version=said.get("valkey_version") or said.get("redis_version", "?"),
        product=_product(said),
        maxmemory=_number(said, "maxmemory"),
        policy=said.get("maxmemory_policy", "noeviction"),
        aof=said.get("aof_enabled") == "1",
        replicas=_number(said, "connected_slaves"),
        promoted=promoted,
        run=said.get("run_id", ""),
        replication=said.get("master_replid", ""),
    )


def _number(said: dict[str, str], name: str) -> int:
    text = said.get(name, "")
    return int(text) if text.isdigit() else 0


def _product(said: dict[str, str]) -> str:
    if "dragonfly_version" in said:
        return "Dragonfly"
    return "Valkey" if "valkey_version" in said else "Redis"


def greeting(where: str, *, allow_eviction: bool, proved: bool) -> Program[Facts]:
    """Look at a node of a quorum; one round trip, two to a promoted replica.

    Raises StoreUnavailable for a server that must not grant leases.
    """
    (info,) = yield Step(_INFO, 1)
    if not isinstance(info, bytes):
        raise answered_error(str(info), where, proved=proved)
    facts = read_facts(info)
    admit(facts, where, allow_eviction=allow_eviction)
    if facts.promoted:
        request = pack("EVAL", _PROMOTED.text, 1, _PROMOTED_KEY, facts.promoted)
        (since,) = yield Step(request, 1)
        if not isinstance(since, int):
            raise answered_error(str(since), where, proved=proved)
        return replace(facts, master_for=max(0.0, since / 1000))
    return facts


def admit(facts: Facts, where: str, *, allow_eviction: bool) -> None:
    """Raises StoreUnavailable for a server that must not grant leases."""
    if facts.role != "master":
        raise Demoted(
            f"{where} is a replica, which cannot grant leases: use the address of the master",
            retry_after=1.0,
        )
    if facts.evicts and not allow_eviction:
        raise StoreUnavailable(
            f"{where} may evict leases (maxmemory-policy {facts.policy}): set maxmemory-policy to"
            " noeviction, or accept two holders with ?allow_eviction=yes",
            permanent=True,
        )


def diagnosis(
    ttl: float,
    wait: float | None,
    clock: Callable[[], float],
    wall: Callable[[], float],
    *,
    marked: bool = False,
) -> Program[list[Finding]]:
    """Findings for `doctor`; `wait` is the restart wait, `clock` and `wall` tell the time.

    `marked`: since when it is what it is says a marker, not its uptime.
    """
    began = clock()
    yield Step(_PING, 1)
    trip = clock() - began
    info, time, save = yield Step(_INFO + pack("TIME") + pack("CONFIG", "GET", "save"), 3)
    for answer in (info, time):
        if isinstance(answer, Exception):
            raise answered_error(str(answer), "the server")
    facts = read_facts(info)
    return [
        *_about(facts),
        _about_memory(facts),
        _about_disk(facts, save),
        *([] if marked else [_about_start(facts, ttl if wait is None else wait)]),
        _about_clock(time, wall()),
        _about_trip(trip, ttl),
    ]


def _about(facts: Facts) -> list[Finding]:
    what = f"{facts.product} {facts.version}, role {facts.role}"
    found = [("ok" if facts.role == "master" else "error", what, _MASTER[facts.role != "master"])]
    if facts.product == "Dragonfly":
        found.append(("warning", "not tested on Dragonfly", "try it with your failures first"))
    replicas = "a failover can lose the newest leases: fence at the resource"
    found.append(("warning", "replication is asynchronous", replicas))
    return found


_MASTER: Final = ("", "use the address of the master")


def _about_memory(facts: Facts) -> Finding:
    what = f"maxmemory {facts.maxmemory or 'unlimited'}, policy {facts.policy}"
    if facts.evicts:
        return ("error", f"{what}: leases may be evicted", "set maxmemory-policy noeviction")
    return ("ok", f"{what}: leases are not evicted", "")


def _about_disk(facts: Facts, save: Any) -> Finding:
    if facts.aof:
        return ("ok", "appendonly is on: tokens, history and used slots survive a restart", "")
    if not isinstance(save, list) or len(save) < 2:
        how = "appendonly is off"
    else:
        how = f"appendonly is off, save {save[1].decode() or 'off'}"
    return (
        "warning",
        f"{how}: a restart loses leases; restart_wait covers their holders",
        "set appendonly yes to keep tokens, history and switches",
    )


def _about_start(facts: Facts, wait: float) -> Finding:
    what = f"up for {say_seconds(facts.uptime)}, restart_wait {say_seconds(wait)}"
    if facts.uptime - 1 < wait:
        return ("warning", f"{what}: it grants nothing yet", "wait")
    return ("ok", what, "")


def _about_clock(time: list[bytes], wall: float) -> Finding:
    apart = abs(int(time[0]) + int(time[1]) / 1e6 - wall)
    what = f"its clock and this machine's are {say_seconds(apart)} apart"
    if apart > 1:
        return ("warning", what, "synchronise both: a jump of the server's clock moves every ttl")
    return ("ok", what, "")


def _about_trip(trip: float, ttl: float) -> Finding:
    what = f"a round trip takes {say_seconds(trip)}"
    if trip > ttl / 30:
        return ("warning", f"{what}, much for a ttl of {say_seconds(ttl)}", "use a longer ttl")
    return ("ok", what, "")
