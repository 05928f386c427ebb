"""The findings of `doctor` about a server: its settings and its marker. It writes nothing."""

from __future__ import annotations

from itertools import chain
from typing import Final

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.findings import (
    CannotTell,
    Finding,
    GrantsNothing,
    about_clock,
    about_trip,
    at,
    cannot_tell,
    finding,
    grants_nothing,
    wait_after_restart,
)
from incumbent.stores.plan import run_blocking
from incumbent.stores.redis.incarnation import (
    CHECK_EVERY,
    InfoFacts,
    read_facts,
    read_marker,
    refuse_if_used_otherwise,
)
from incumbent.stores.redis.resp import RequestBatch, RespProgram, pack
from incumbent.stores.redis.site import QUORUM_KEY, RedisSite, answered_error
from incumbent.stores.redis.wire import UNUSABLE, Discovery, RedisSide, run_program

_RESYNC_LEAST: Final = 2
"""Seconds of repl-diskless-sync-delay that keep a resync from ending between two checks."""


def diagnose(
    site: RedisSite, discovery: Discovery | None, side: RedisSide, ttl: float, until: float
) -> list[Finding]:
    """The findings about a store: about its one server, or the discovered masters."""
    reported, masters = list[Finding](), [("", site)]
    if discovery is not None:
        try:
            run_blocking(discovery.ask(side, until))
        except StoreError as error:
            return [cannot_tell(str(error), discovery.advice)]
        reported, masters = [("ok", discovery.summary, "")], discovery.masters()
    about: list[list[Finding]] = []
    for left, (name, master) in zip(range(len(masters), 0, -1), masters, strict=True):
        # Each master has a share of the remaining time, so that one cannot use up all of it.
        share = clock.now() + max(0.0, until - clock.now()) / left
        findings = _examine(ttl, master, side, share)
        about.append(at(name, findings) if name else findings)
    whole = list(chain.from_iterable(about))
    if not all(any(isinstance(each, GrantsNothing) for each in findings) for findings in about):
        # It is not known here which names are on the masters that grant nothing.
        whole = [CannotTell(each) if isinstance(each, GrantsNothing) else each for each in whole]
    return [*reported, *whole]


def _examine(ttl: float, site: RedisSite, side: RedisSide, until: float) -> list[Finding]:
    """The findings about one server, also if a store would refuse to use it."""

    def program() -> RespProgram[list[Finding]]:
        findings = yield from diagnosis(ttl)
        findings += yield from _about_resync()
        findings += yield from _about_marker(site, ttl)
        return findings

    try:
        wire = run_blocking(side.dial(site, until))
    except StoreError as error:
        return [cannot_tell(str(error), "check the address, the password and the network")]
    try:
        return run_blocking(run_program(wire, program(), until))
    except (StoreError, *UNUSABLE) as error:
        return [cannot_tell(f"{site.where} answered nothing usable: {error}", "look at its log")]
    finally:
        wire.close()


# -- the server -----------------------------------------------------------------------------------


def diagnosis(ttl: float, *, in_quorum: bool = False) -> RespProgram[list[Finding]]:
    """Findings for `doctor` about a server, but for its marker, which says how old it is.

    `in_quorum`: it is a member of one, whose leases do not depend on its replication.
    """
    began = clock.now()
    yield RequestBatch(pack("PING"), 1)
    trip = clock.now() - began
    asked = b"".join(pack("CONFIG", "GET", name) for name in _SETTINGS)
    info, time, *answers = yield RequestBatch(
        pack("INFO") + pack("TIME") + asked, 2 + len(_SETTINGS)
    )
    for answer in (info, time):
        if isinstance(answer, Exception):
            raise answered_error(str(answer), "the server")
    # Those that this user may read.
    pairs = [answer for answer in answers if isinstance(answer, list) and len(answer) == 2]
    settings = {name.decode(): value.decode() for name, value in pairs}
    facts = read_facts(info)
    advice, role = (
        "use the address of the master",
        f"{facts.product} {facts.version}, role {facts.role}",
    )
    is_master = finding(facts.role == "master", role, advice=advice, level="error")
    findings = [is_master, *_about_replication(facts, in_quorum=in_quorum)]
    findings += [*_about_settings(facts, settings), *_about_writes(facts, settings)]
    apart = abs(int(time[0]) + int(time[1]) / 1e6 - clock.wall())
    return [*findings, about_clock(apart), about_trip(trip, ttl)]


_SETTINGS: Final = ("save", "stop-writes-on-bgsave-error", "min-replicas-to-write")
"""One request each: before Redis 7, CONFIG GET takes one name."""


def _about_replication(facts: InfoFacts, *, in_quorum: bool) -> list[Finding]:
    if not in_quorum:
        advice = "a failover can lose the newest leases: fence at the resource"
        return [("warning", "replication is asynchronous", advice)]
    if not facts.replicas:
        return []
    advice = "let none be promoted in its place: it would have forgotten its newest votes"
    return [("warning", "it has replicas, and a member of a quorum needs none", advice)]


def _about_settings(facts: InfoFacts, settings: dict[str, str]) -> list[Finding]:
    """What a restart or a full memory does to leases."""
    memory = f"maxmemory {facts.maxmemory or 'unlimited'}, policy {facts.policy}: leases"
    how = f", save {settings['save'] or 'off'}" if "save" in settings else ""
    findings = [
        finding(
            not facts.evicts,
            f"{memory} are not evicted",
            f"{memory} may be evicted",
            "set maxmemory-policy noeviction",
            level="error",
        ),
        finding(
            facts.aof,
            "appendonly is on: tokens, history and used slots survive a restart",
            f"appendonly is off{how}: a restart loses leases; restart_wait covers their holders",
            "set appendonly yes to keep tokens, history and switches",
        ),
    ]
    if facts.product == "Dragonfly":
        untested = ("warning", "not tested on Dragonfly", "try it with your failures first")
        findings.insert(0, untested)
    return findings


def _about_writes(facts: InfoFacts, settings: dict[str, str]) -> list[Finding]:
    """Why the server takes no writes, as far as this user may ask it.

    The rules: https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/ (MISCONF),
    https://redis.io/docs/latest/operate/oss_and_stack/management/replication/ (NOREPLICAS).
    """
    findings: list[Finding] = []
    if facts.stopped:
        findings.append(grants_nothing(facts.stopped, "make room for it", level="error"))
    if facts.snapshot_failed:
        what, advice = "its last snapshot failed", "make room on its disk, or look at its log"
        refuses = "stop-writes-on-bgsave-error"
        if not {"save", refuses} <= settings.keys():
            findings.append(cannot_tell(f"{what}: perhaps it takes no writes", advice))
        elif settings["save"] and settings[refuses] == "yes":
            what = f"{what}: it takes no writes (MISCONF)"
            findings.append(grants_nothing(what, advice, level="error"))
    if facts.good_replicas is not None:
        wanted, what = (
            settings.get("min-replicas-to-write"),
            f"good replicas: {facts.good_replicas}",
        )
        if wanted is None:
            what = f"{what}, and it may want more: perhaps it takes no writes"
            findings.append(cannot_tell(what, "allow +config|get"))
        elif facts.good_replicas < int(wanted):
            what = f"{what} of {wanted} (min-replicas-to-write): it takes no writes"
            findings.append(grants_nothing(what, "bring back replicas", level="error"))
    return findings


# -- its marker -----------------------------------------------------------------------------------


def _about_marker(site: RedisSite, ttl: float) -> RespProgram[list[Finding]]:
    """Whether the server grants yet, and how long it would wait after a restart."""
    keys = site.marker_keys
    asked = [pack("INFO"), pack("TIME"), *(pack("GET", key) for key in (QUORUM_KEY, *keys))]
    info, time, member, *values = yield RequestBatch(b"".join(asked), len(asked))
    if not isinstance(info, bytes) or not isinstance(time, list):
        raise answered_error(str(info), site.where)
    facts, now = read_facts(info), int(time[0]) + int(time[1]) / 1e6
    try:
        refuse_if_used_otherwise(member, QUORUM_KEY, site.where)
        markers = [
            read_marker(raw, site.where, key) for key, raw in zip(keys, values, strict=False)
        ]
    except StoreUnavailable as error:
        return [("error", str(error), "stop the other instances first")]
    start, promotion = int((now - facts.uptime) * 1e6), site.target.promotion
    found = (
        marker for marker in markers if marker is not None and marker.is_of(facts, promotion, start)
    )
    marker = next(found, None)
    longest = max((marker.longest / 1000 for marker in markers if marker), default=0.0)
    wait = wait_after_restart(site.restart_wait, ttl, longest)
    what, age = "new, restarted, promoted or emptied since it was last asked for a lease", 0.0
    if marker is not None:
        age = max(0.0, min(now - marker.since / 1e6, clock.wall() - marker.written_at / 1e6))
        what = f"the same server with the same data for {say_seconds(float(int(age)))}"
    what = f"{what}, restart_wait {say_seconds(wait)}"
    advice = f"wait {say_seconds(wait - age)} from the first request on, or name restart_wait=0"
    findings = [
        ("ok", what, "")
        if age >= wait
        else grants_nothing(f"{what}: it grants nothing yet", advice)
    ]
    # After a restart without data, no client can learn how long the ttls were.
    believed = max(longest, ttl)
    after_a_wipe = TTL_DEFAULT if site.restart_wait is None else site.restart_wait
    if believed > after_a_wipe:
        what = (
            f"after a wipe it grants {say_seconds(after_a_wipe)} later, and holders may believe"
            f" for {say_seconds(believed)}"
        )
        findings.append(("warning", what, f"name restart_wait={say_seconds(believed)}"))
    return findings


def _about_resync() -> RespProgram[list[Finding]]:
    """Findings for `doctor`: how soon a master that becomes a replica has its new master's data."""
    info, config = yield RequestBatch(
        pack("INFO") + pack("CONFIG", "GET", "repl-diskless-sync*"), 2
    )
    settings = (
        dict(zip(config[::2], config[1::2], strict=False)) if isinstance(config, list) else {}
    )
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
            f"{what}: a switchover there and back in less than {CHECK_EVERY} s may go unnoticed",
            f"set repl-diskless-sync yes, and repl-diskless-sync-delay {_RESYNC_LEAST} or more",
        )
    ]
