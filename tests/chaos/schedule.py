"""What befalls a fleet, as data: drawn from a seed, printed, made smaller. Nothing happens here.

A schedule is judged for safety alone. Where no program on the instance's machine could have kept
two workers apart, `may_overlap` says why, before anything has run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from incumbent.model import Capabilities
from incumbent.stores.etcd.engine import EtcdEngine
from incumbent.stores.kubernetes.engine import KubernetesEngine
from incumbent.stores.mysql.engine import MysqlEngine
from incumbent.stores.postgresql.engine import PostgresEngine
from incumbent.stores.redis.engine import RedisEngine
from incumbent.stores.sqlite import SqliteEngine

TTL = 1.0
GRACE = 0.3
INSTANCES = 3
LENGTH = 3.2
"""Seconds from the first worker's begin to the end of the schedule: faults, and who follows."""

CAPABILITIES: dict[str, Capabilities] = {
    "sqlite": SqliteEngine.capabilities,
    "redis": RedisEngine.capabilities,
    "postgresql": PostgresEngine.capabilities,
    "mysql": MysqlEngine.capabilities,
    "etcd": EtcdEngine.capabilities,
    "kubernetes": KubernetesEngine.capabilities,
}
"""The quorum has a campaign of its own, see tests.quorum.campaign."""
STORES = tuple(CAPABILITIES)
HAVE_PERMITS = tuple(store for store, can in CAPABILITIES.items() if can.shared)
HAVE_LINES = tuple(store for store, can in CAPABILITIES.items() if can.queue)
SHARES = {
    "permits": HAVE_PERMITS,
    "readers": tuple(store for store in HAVE_PERMITS if store in HAVE_LINES),
    "seats": HAVE_PERMITS,
}
"""What several may hold at once, and on which stores: two permits, two readers and a writer, or an
election with two seats."""
ORDERS = {"fair": HAVE_LINES, "priority": STORES}
"""Who is to lead next, and on which stores: who came first, or who has the highest priority."""
ISOLATIONS = ("pidns", "container", "pgroup")
# --daemon: leaves its group and its parents; --stranger: and the environment it was given.
DESCENDANTS = ("--daemon", "--stranger")
WORKERS = (
    *((), ("--stubborn",), ("--daemon",), ("--stubborn", "--daemon")) * 2,
    *(("--stranger",), ("--stubborn", "--stranger")),
)
PROCESSES = ("supervisor", "guard", "child")

ON_PROCESSES = tuple(f"{how} {who}" for who in PROCESSES for how in ("kill", "stop", "term"))
ON_CHILD = ("exit child",)
ON_SERVER = ("kill server", "stop server", "term server", "restart empty")
ON_NETWORK = (
    "unreachable",
    "black hole",
    "slow, in time",
    "slow, too late",
    "answers lost",
    "requests lost",
)
ON_WATCH = ("watches cut",)
ON_FILE = ("file locked",)
LOSES_KEYS = ("flush",)
KINDS = (*ON_PROCESSES, *ON_CHILD, *ON_SERVER, *ON_NETWORK, *ON_WATCH, *ON_FILE, *LOSES_KEYS)

_ONCE = ("kill", "term", "exit", "flush", "watches cut")
_SETTLED = GRACE + 0.2
"""Seconds after which the death of one has been dealt with by the other."""


@dataclass(frozen=True)
class Fault:
    """`kind` begins `at` seconds after the first worker did, and `lasts` so many more.

    It befalls the instance that leads then; `standby`: another one; `all`: the network of everyone.
    """

    at: float
    kind: str
    lasts: float = 0.0
    standby: bool = False
    all: bool = False

    @property
    def end(self) -> float:
        return self.at + self.lasts

    def meets(self, other: Fault) -> bool:
        """Whether both are in force at some instant."""
        return self.at <= other.end and other.at <= self.end

    def __str__(self) -> str:
        lasts = f" for {self.lasts:.2f} s" if self.lasts else ""
        where = " of a standby" if self.standby else " for all" if self.all else ""
        return f"{self.at:5.2f} s  {self.kind}{where}{lasts}"


@dataclass(frozen=True)
class Schedule:
    """One run of a fleet. `restart_wait` False: the URL opts out of the wait after a restart.

    `shares`: of SHARES; empty: one leads. `order`: of ORDERS; empty: anyone of those who wait.
    """

    seed: int
    store: str
    isolation: str
    worker: tuple[str, ...] = ()
    restart_wait: bool = True
    faults: tuple[Fault, ...] = ()
    shares: str = ""
    order: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(fault.kind for fault in self.faults)

    def __str__(self) -> str:
        wait = "" if self.restart_wait else ", restart_wait=0"
        worker = " ".join(self.worker) or "obedient"
        what = " ".join(word for word in (self.order, self.shares) if word)
        what = f"{what} on " if what else ""
        head = f"seed {self.seed}: {what}{self.store}{wait}, {self.isolation}, worker {worker}"
        return "\n".join([head, *(f"  {fault}" for fault in self.faults)])


def draw(seed: int, on: str = "") -> Schedule:
    """The schedule of a seed, the same on every machine. `on`: a store, in place of a drawn one."""
    rng = random.Random(f"chaos {seed}")
    store, isolation = rng.choice(STORES), rng.choice(ISOLATIONS)
    store = on or store
    worker = rng.choice(WORKERS)
    if rng.random() < 0.15:
        worker = (*worker, "--for", f"{rng.uniform(0.3, 1.2):.2f}")
    kinds = _kinds(rng, store)
    faults = _faults(rng, kinds)
    # The opt-out is for servers that keep their data; a wipe with it is drawn now and then.
    wipes = "restart empty" in kinds
    restart_wait = store == "sqlite" or rng.random() < (0.9 if wipes else 0.3)
    return Schedule(seed, store, isolation, worker, restart_wait, faults, order=_order(seed, store))


def _order(seed: int, store: str) -> str:
    drawn = random.Random(f"chaos order {seed}").choice(("", "", "", "", "", "", *ORDERS))
    return drawn if drawn and store in ORDERS[drawn] else ""


def draw_shared(seed: int, on: str = "") -> Schedule:
    """The schedule of a seed whose name several may hold; `on`: as for `draw`."""
    rng = random.Random(f"chaos shared {seed}")
    shares = rng.choice(("permits", "permits", "readers"))
    store, isolation = rng.choice(SHARES[shares]), rng.choice(ISOLATIONS)
    store = on or store
    if shares == "permits" and random.Random(f"chaos seats {seed}").random() < 0.25:
        shares = "seats"
    worker = rng.choice(WORKERS)
    if rng.random() < 0.6:
        # Else whoever waits comes in after a fault alone.
        worker = (*worker, "--for", f"{rng.uniform(0.2, 1.0):.2f}")
    return Schedule(
        seed, store, isolation, worker, faults=_faults(rng, _kinds(rng, store)), shares=shares
    )


def faults_of(store: str) -> tuple[str, ...]:
    """What befalls a store and the network before it."""
    if store == "sqlite":
        return ON_FILE
    # Nobody makes the tables of a server that lost them.
    of_server = ON_SERVER[:-1] if store in ("postgresql", "mysql") else ON_SERVER
    return (*of_server, *ON_NETWORK, *(ON_WATCH if store == "kubernetes" else ()))


def _kinds(rng: random.Random, store: str) -> list[str]:
    of_store = faults_of(store)
    # As often the processes as the store, however many ways there are for each.
    drawn = [
        rng.choice(rng.choice((ON_PROCESSES, ON_PROCESSES, of_store, of_store, ON_CHILD)))
        for _ in range(rng.choice((1, 2, 2, 2, 3)))
    ]
    if rng.random() < 0.08:
        # The pair that isolation is about.
        drawn[:2] = [f"{rng.choice(('kill', 'stop'))} {who}" for who in PROCESSES[:2]]
    elif store == "redis" and rng.random() < 0.02:
        drawn[0] = "flush"
    return drawn


def _faults(rng: random.Random, kinds: list[str]) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    at = rng.uniform(0.0, 0.5)
    for kind in kinds:
        lasts, standby = _lasts(rng, kind), rng.random() < 0.15
        of_all = not standby and kind in ON_NETWORK and rng.random() < 0.4
        faults.append(Fault(round(at, 3), kind, lasts, standby, of_all))
        # The next comes with it, or anywhere in the life of the lease, or about when it ends.
        apart = (rng.uniform(0.0, 0.03), rng.uniform(0.0, TTL), rng.uniform(0.55, 0.98))
        at += rng.choice(apart)
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _lasts(rng: random.Random, kind: str) -> float:
    if kind.startswith("stop ") and kind != "stop server":
        return round(rng.uniform(1.3, 2.0) * TTL, 3)
    if kind.startswith(_ONCE) and not kind.endswith("server"):
        return 0.0
    return round(rng.uniform(0.1, 2.0) * TTL, 3)


# -- what nobody can prevent -----------------------------------------------------------------------


def may_overlap(schedule: Schedule, isolation: str) -> str:
    """Why two workers may live at once whatever we do; empty: they may not."""
    kinds = schedule.kinds
    if "flush" in kinds and not schedule.restart_wait:
        return "the store loses its keys"
    if "restart empty" in kinds and not schedule.restart_wait:
        return "the store restarts empty with restart_wait=0"
    has_more = bool(set(DESCENDANTS) & set(schedule.worker))
    for supervisor, guard in _met_together(schedule):
        if _nobody_is_left(supervisor, guard, isolation, has_more):
            return f"supervisor and guard gone together ({supervisor}, {guard})"
    if isolation == "pgroup" and "--stranger" in schedule.worker and "kill supervisor" in kinds:
        return "pgroup: a daemon with an environment of its own, its supervisor killed"
    return ""


def _met_together(schedule: Schedule) -> Iterator[tuple[str, str]]:
    """How the supervisor and how the guard went (kill or stop) at the same time."""
    for one in schedule.faults:
        for two in schedule.faults:
            if (
                _goes(one, "supervisor")
                and _goes(two, "guard")
                and _lasting(one).meets(_lasting(two))
            ):
                yield one.kind.split()[0], two.kind.split()[0]


def _goes(fault: Fault, who: str) -> bool:
    return fault.kind in (f"kill {who}", f"stop {who}")


def _lasting(fault: Fault) -> Fault:
    return replace(fault, lasts=fault.lasts or _SETTLED)


def _nobody_is_left(supervisor: str, guard: str, isolation: str, has_more: bool) -> bool:
    match supervisor, guard:
        case "stop", "stop":
            return True
        case "stop", _:
            # The init of a PID namespace, and all in it, ends with the guard.
            return isolation != "pidns"
        case _, "stop":
            # CMD ends with its supervisor; what it started only with PID 1, or by the guard.
            return has_more and isolation != "container"
        case _:
            return has_more and isolation == "pgroup"


# -- smaller ones, and text ------------------------------------------------------------------------


def smaller(schedule: Schedule) -> Iterator[Schedule]:
    """The schedules with one thing less."""
    for left_out in range(len(schedule.faults)):
        rest = schedule.faults[:left_out] + schedule.faults[left_out + 1 :]
        yield replace(schedule, faults=rest)
    if schedule.worker:
        yield replace(schedule, worker=())


def to_text(schedule: Schedule) -> str:
    """One line of JSON."""
    return json.dumps(asdict(schedule))


def from_text(text: str) -> Schedule:
    """What `to_text` wrote."""
    known = json.loads(text)
    faults = tuple(Fault(**fault) for fault in known.pop("faults"))
    return Schedule(**{**known, "worker": tuple(known["worker"])}, faults=faults)
