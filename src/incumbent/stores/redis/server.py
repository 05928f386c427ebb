"""One configured server: its address, the errors of connecting to it, and the facts in its INFO.

INFO is read when a connection is made, and looked at again with a take now and then: settings may
change while clients are connected. `admit` refuses a server that must not grant leases.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import raise_handlers
from incumbent.net.names import is_unknown
from incumbent.stores.redis.errors import Demoted, answered_error
from incumbent.stores.redis.options import RedisOptions, RedisTarget
from incumbent.stores.redis.resp import Program, RequestBatch, Script, pack

MARKER_KEY: Final = "incumbent:{incumbent}:server"
QUORUM_KEY: Final = "incumbent:{quorum}:m"
"""The key of the marker of a member of a quorum; it and MARKER_KEY refuse each other."""


class Marker(NamedTuple):
    """The keys of the marker: one, or in a cluster those of copies in several slots of the node.

    `settle`: seconds for which an old master may still be in use after a promotion.
    """

    keys: tuple[str, ...] = (MARKER_KEY,)
    settle: float = 0.0


MARKED: Final = Marker()


@dataclass(slots=True)
class RedisSite:
    """One configured server. `proved`: it has served this process before.

    `named`: the user named its host, not another server. `sighted`: the incarnation that this
    process saw last, and when it saw it first. `meant_until`: the instant from which `target` may
    no longer be the right server.
    """

    target: RedisTarget
    where: str
    restart_wait: float | None = None
    allow_eviction: bool = False
    proved: bool = False
    named: bool = True
    marker: Marker = MARKED
    sighted: tuple[str, float] = ("", 0.0)
    meant_until: float = inf

    def means(self, target: object) -> bool:
        """Whether a request may be sent to `target` now."""
        # In this order: a thread that learns of a new server sets `target` before `meant_until`.
        return clock.now() < self.meant_until and target is self.target


def site_of(options: RedisOptions) -> RedisSite:
    """The server that the options name."""
    return RedisSite(options.target, options.shown, options.restart_wait, options.allow_eviction)


class LoginRefused(Exception):
    """The server replied with an error to a request of the log-in."""


class ProviderFailed(Exception):
    """The user's provider of credentials raised an error, which may be any Exception."""

    def __init__(self, error: Exception) -> None:
        raise_handlers(error)
        super().__init__(str(error) or type(error).__name__)


_WRONG_LOGIN: Final = (
    *("WRONGPASS ", "NOAUTH ", "NOPERM ", "ERR invalid password"),
    *("ERR AUTH <password> called without", "ERR Client sent AUTH"),
)
_WRONG_DATABASE: Final = (
    *("ERR DB index is out of range", "ERR invalid DB index"),
    "ERR SELECT is not allowed in cluster mode",
)
_ALERTS: Final = ("ALERT_CERTIFICATE_", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
"""TLS alerts of a server that does not accept our certificate, or wants one."""


def connect_error(error: BaseException, site: RedisSite) -> StoreUnavailable:
    """The exception for a connection that could not be made: nothing was sent on it."""
    text = str(error) or type(error).__name__
    what, final = "cannot be reached", _is_bad_certificate(error)
    if isinstance(error, LoginRefused) and text.startswith(_WRONG_LOGIN):
        what, final = "refuses the login", True
    elif isinstance(error, LoginRefused) and text.startswith(_WRONG_DATABASE):
        what, final = f"has no database {site.target.db} for us", True
    elif is_unknown(error) and site.named:
        what, final, text = "cannot be reached", True, f"there is no host {site.target.host!r}"
    for secret in site.target.secrets:
        text = text.replace(secret, "***")
    return StoreUnavailable(f"{site.where} {what}: {text}", permanent=final and not site.proved)


def _is_bad_certificate(error: BaseException | None) -> bool:
    while error is not None:
        reason = str(getattr(error, "reason", ""))
        if type(error).__name__ == "SSLCertVerificationError":
            return True
        if any(alert in reason for alert in _ALERTS):
            return True
        error = error.__cause__ or error.__context__
    return False


_INFO: Final = pack("INFO")
INFO_LOOK: Final = (pack("INFO", "replication"), pack("INFO", "memory"))
"""The part of INFO whose facts can change while a connection lives: role and eviction."""
_PROMOTED: Final = Script("put:promoted")
_PROMOTED_KEY: Final = "incumbent:{incumbent}:promoted"
"""The key where clients note when they first saw a promoted replica as the master."""


class InfoFacts(NamedTuple):
    """The part of INFO that a lease depends on. `uptime`: whole seconds, as the server counts.

    `promoted`: the replication id of a master that was a replica before, else ""; `master_for`:
    seconds for which it has certainly been one; `run`, `replication`: ids of the server's run and
    of its data's history, "" if INFO has none; `stopped`: why it takes no writes, or "";
    `snapshot_failed`: whether the last one failed; `good_replicas`: None if writes need none.
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
    stopped: str = ""
    snapshot_failed: bool = False
    good_replicas: int | None = None

    @property
    def evicts(self) -> bool:
        """Whether the server may delete a lease to make room."""
        return self.maxmemory > 0 and self.policy != "noeviction"

    def born(self, received: float) -> float:
        """The latest possible beginning of this incarnation, if INFO arrived at `received`.

        The uptime is a difference of two wall clock readings, each cut to whole seconds, so it may
        be up to a second too large.
        """
        return received - min(max(0, self.uptime - 1), self.master_for)


def read_facts(text: bytes) -> InfoFacts:
    """Read the answer to INFO."""
    fields = dict(
        line.split(":", 1)
        for line in text.decode("utf-8", "replace").splitlines()
        if ":" in line and not line.startswith("#")
    )
    # Set only by a promotion (and by a restart from a snapshot, where waiting is right too).
    before = fields.get("master_replid2", "").strip("0")
    promoted = fields.get("master_replid", "") if before else ""
    return InfoFacts(
        # A master that was a replica in between is another incarnation of the same process.
        epoch=fields.get("run_id", "") + (f":{promoted}" if promoted else ""),
        uptime=_number(fields, "uptime_in_seconds"),
        role=fields.get("role", "master"),
        version=fields.get("valkey_version") or fields.get("redis_version", "?"),
        product=_product(fields),
        maxmemory=_number(fields, "maxmemory"),
        policy=fields.get("maxmemory_policy", "noeviction"),
        aof=fields.get("aof_enabled") == "1",
        replicas=_number(fields, "connected_slaves"),
        promoted=promoted,
        run=fields.get("run_id", ""),
        replication=fields.get("master_replid", ""),
        stopped=_why_no_writes(fields),
        snapshot_failed=fields.get("rdb_last_bgsave_status", "ok") != "ok",
        good_replicas=(
            _number(fields, "min_slaves_good_slaves")
            if "min_slaves_good_slaves" in fields
            else None
        ),
    )


def _why_no_writes(fields: dict[str, str]) -> str:
    used, most = _number(fields, "used_memory"), _number(fields, "maxmemory")
    if 0 < most < used and fields.get("maxmemory_policy", "noeviction") == "noeviction":
        return f"it is out of memory: {used} bytes of {most} (maxmemory), and takes no writes"
    if fields.get("aof_last_write_status", "ok") != "ok":
        return "it cannot write its append-only file, and takes no writes"
    return ""


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdigit() else 0


def _product(fields: dict[str, str]) -> str:
    if "dragonfly_version" in fields:
        return "Dragonfly"
    return "Valkey" if "valkey_version" in fields else "Redis"


def greeting(where: str, *, allow_eviction: bool, proved: bool) -> Program[InfoFacts]:
    """Check a node of a quorum: one round trip, or two for a promoted replica.

    Raises StoreUnavailable for a server that must not grant leases.
    """
    (info,) = yield RequestBatch(_INFO, 1)
    if not isinstance(info, bytes):
        raise answered_error(str(info), where, proved=proved)
    facts = read_facts(info)
    admit(facts, where, allow_eviction=allow_eviction, proved=proved)
    if facts.promoted:
        request = pack("EVAL", _PROMOTED.text, 1, _PROMOTED_KEY, facts.promoted)
        (since,) = yield RequestBatch(request, 1)
        if not isinstance(since, int):
            raise answered_error(str(since), where, proved=proved)
        return facts._replace(master_for=max(0.0, since / 1000))
    return facts


def belongs_elsewhere(found: object, key: str, where: str) -> None:
    """Raises StoreUnavailable if `found`, the value of `key`, is a marker.

    A server that is a member of a quorum and serves alone too would grant a lease twice.
    """
    if isinstance(found, bytes) and found:
        by = "a member of a quorum" if key == QUORUM_KEY else "a server of its own"
        raise StoreUnavailable(
            f"{where} is used as {by} already (its key {key} says so): stop the clients that use it"
            " so, wait for the longest ttl and delete that key; or use another server or database",
            permanent=True,
        )


def admit(facts: InfoFacts, where: str, *, allow_eviction: bool, proved: bool) -> None:
    """Raises StoreUnavailable for a server that must not grant leases.

    `proved`: it has served this process before, so that it may serve again.
    """
    if facts.role != "master":
        raise Demoted(
            f"{where} is a replica, which cannot grant leases: use the address of the master",
            retry_after=1.0,
        )
    if facts.evicts and not allow_eviction:
        raise StoreUnavailable(
            f"{where} may evict leases (maxmemory-policy {facts.policy}): set maxmemory-policy to"
            " noeviction, or accept two holders with ?allow_eviction=yes",
            permanent=not proved,
        )
