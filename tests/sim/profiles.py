"""Kinds of worlds. A clean count means little unless each is directed at something rare."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from incumbent.model import UNLIMITED

__all__ = ["PROFILES", "Fate", "Profile"]


class Fate(Enum):
    """What can befall one exchange."""

    FINE = auto()
    REFUSED = auto()
    LOST_REQUEST = auto()
    LOST_REPLY = auto()
    LATE_REQUEST = auto()
    SLOW_REPLY = auto()
    RESET = auto()
    STALL_BEFORE_SENDING = auto()
    STALL_BEFORE_REPLY = auto()
    CROSSED_REPLY = auto()


@dataclass(frozen=True)
class Profile:
    """Chances are in 0 to 1; durations are in ttls unless they say otherwise."""

    name: str
    about: str
    clients: tuple[int, int] = (2, 3)
    rounds: tuple[int, int] = (1, 2)
    ttls: tuple[float, ...] = (1.0, 3.0, 15.0)
    """Seconds."""
    lock_delay: float = 0.0
    margin: float | None = None
    """Seconds; None is the policy's default."""
    idle: float = 0.5
    clocks_at_bounds: bool = False
    faults: tuple[tuple[Fate, float], ...] = ()
    """The chance of each fate, of each exchange."""
    lost_hints: float = 0.1
    tries_once: float = 0.2
    asks_renewal: float = 0.05
    interrupts: float = 0.0
    """Of each wait of the user's thread, and of each exchange of the keeper's."""
    crashes: float = 0.0
    freezes: float = 0.0
    partitions: float = 0.0
    """Of each process, to be cut off for a while: in one direction or in both."""
    server_freezes: float = 0.0
    restarts: float = 0.0
    wipes: float = 0.0
    """The part of the restarts that lose all data."""
    restart_wait: float | None = None
    operators: float = 0.0
    slots: float = 0.0
    """For how long a slot is closed to others; 0: nobody uses one."""
    shares: tuple[tuple[int | None, ...], ...] = ()
    """One of these is drawn for a world: with what permits (see Ask) its clients ask, in line."""
    names: tuple[str, ...] = ()
    """Each client asks for some of these together, all or none; empty: for the one name."""
    served: float = 0.0
    """Within how many ttls an acquire of somebody ends while somebody waits; 0: unchecked."""
    bounds: bool = False
    """Whether at_least_for and at_most_for are used."""
    prompt: float = 0.0
    """Within how much of a ttl a dead claim must be gone from the store; 0: unchecked."""
    calm: bool = False
    """Nothing goes wrong, so nobody may lose anything."""
    overlaps: bool = False
    """The store forgets, or its clock jumps: overlaps are expected, as the design says."""
    strict_proofs: bool = True
    """Whether every proof is compared with the store's record, not only with other beliefs."""

    @cached_property
    def fates(self) -> tuple[tuple[float, Fate], ...]:
        """Running totals of the faults, the largest first."""
        totals, total = [(0.0, Fate.FINE)], 0.0
        for fate, chance in self.faults:
            total += chance
            totals.append((total, fate))
        return tuple(reversed(totals))


_LOSSY = (
    (Fate.REFUSED, 0.05),
    (Fate.LOST_REQUEST, 0.06),
    (Fate.LOST_REPLY, 0.06),
    (Fate.LATE_REQUEST, 0.05),
    (Fate.SLOW_REPLY, 0.06),
    (Fate.RESET, 0.03),
    (Fate.CROSSED_REPLY, 0.02),
)
# The operator's name (see setting.KEY) is in the middle of their order.
_NAMES = ("ahead", "job", "next")
_STALLS = ((Fate.STALL_BEFORE_SENDING, 0.05), (Fate.STALL_BEFORE_REPLY, 0.07))

_ALL = (
    Profile("calm", "nothing goes wrong: nobody loses, everybody is served", calm=True, prompt=0.5),
    Profile(
        "network",
        "requests and answers are lost, late, slow, refused, reset or another's; partitions",
        faults=_LOSSY,
        partitions=0.4,
    ),
    Profile(
        "pauses",
        "processes stop between clock and send, send and reply, check and use",
        faults=_STALLS,
        freezes=0.3,
        server_freezes=0.2,
    ),
    Profile(
        "drift",
        "all clocks run at the bounds of rho, the margin is thin, requests are stalled",
        ttls=(15.0, 30.0),
        margin=0.05,
        clocks_at_bounds=True,
        faults=((Fate.LOST_REQUEST, 0.1), (Fate.STALL_BEFORE_SENDING, 0.05)),
        partitions=0.9,
        tries_once=0.0,
        lost_hints=0.5,
        idle=0.1,
    ),
    Profile(
        "signals",
        "signals and cancellations hit every wait of acquire, renew and release",
        ttls=(15.0,),
        interrupts=0.12,
        faults=(*_LOSSY, (Fate.LATE_REQUEST, 0.08)),
        tries_once=0.4,
        prompt=0.8,
    ),
    Profile(
        "restarts",
        "the store restarts, half of the time without its data; processes die",
        restarts=0.8,
        wipes=0.5,
        crashes=0.15,
        faults=((Fate.LOST_REPLY, 0.05), (Fate.SLOW_REPLY, 0.05)),
    ),
    Profile(
        "operators",
        "somebody pauses the name or asks its holder to go",
        operators=0.9,
        faults=((Fate.LOST_REPLY, 0.05), (Fate.SLOW_REPLY, 0.05)),
        crashes=0.1,
    ),
    Profile(
        "slots",
        "work that may be done once, names that stay closed, holders that are bounded",
        slots=2.0,
        bounds=True,
        faults=_LOSSY,
        interrupts=0.03,
        crashes=0.1,
        restarts=0.2,
    ),
    Profile(
        "delays",
        "a name stays closed after a holder that failed: processes die, stop, and are cut off",
        lock_delay=1.5,
        clocks_at_bounds=True,
        crashes=0.4,
        freezes=0.3,
        partitions=0.4,
        restarts=0.2,
        wipes=0.5,
        faults=((Fate.LOST_REPLY, 0.05), (Fate.LOST_REQUEST, 0.05), *_STALLS),
    ),
    Profile(
        "shared",
        "semaphores, or readers and writers; requests are lost, processes stop and die",
        clients=(3, 5),
        shares=((2,), (3,), (UNLIMITED, UNLIMITED, None), (2, 2, None)),
        faults=(*_LOSSY, *_STALLS),
        interrupts=0.03,
        crashes=0.1,
        freezes=0.1,
        restarts=0.15,
        wipes=0.5,
        idle=0.2,
    ),
    Profile(
        "several",
        "several names at once, all or none; requests are lost, signals hit every wait",
        clients=(3, 4),
        rounds=(1, 3),
        ttls=(15.0,),
        names=_NAMES,
        served=6.0,
        faults=_LOSSY,
        interrupts=0.03,
        idle=0.2,
        prompt=0.8,
    ),
    Profile(
        "parted",
        "one of several names is paused or asked back; processes stop, die and are cut off",
        clients=(3, 4),
        names=_NAMES,
        operators=0.7,
        crashes=0.15,
        freezes=0.2,
        partitions=0.3,
        restarts=0.2,
        wipes=0.5,
        faults=((Fate.LOST_REPLY, 0.04), (Fate.LATE_REQUEST, 0.04), *_STALLS),
        idle=0.2,
    ),
    Profile(
        "forgetful",
        "records vanish under their holders: overlaps are expected, old tokens are not",
        overlaps=True,
        wipes=1.0,
        restart_wait=0.0,
        faults=((Fate.LOST_REPLY, 0.05),),
    ),
)
PROFILES = {profile.name: profile for profile in _ALL}
