"""Plans that broke a rule once, made small, each with the defect that it showed.

They keep the rules now. `python -m tests.combined.against COMMIT` plays them on the code of an
older commit, where they have to break them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.combined.plan import Fault, Plan

__all__ = ["REGRESSIONS", "Regression"]


@dataclass(frozen=True)
class Regression:
    """`tries`: on real processes a race may need more than one."""

    name: str
    world: str
    rule: str
    plan: Plan
    tries: int = 1


def _known(name: str, world: str, rule: str, seed: int, *faults: Fault) -> Regression:
    return Regression(name, world, rule, Plan(seed, faults), 10 if world == "redis" else 1)


REGRESSIONS: Final = (
    _known(
        "the wait after a restart counted the ttl of whoever asked",
        *("leases", "belief", 178),
        Fault("rolling change", 1.577, 0.062, 48, 0.825),
        Fault("restart empty", 2.501, 0.062, 49, 0.059),
    ),
    _known(
        "a release that found nothing of ours said released",
        *("leases", "truth", 71),
        Fault("record deleted", 0.986, 0.062, 51, 0.051),
    ),
    _known(
        "a take that was held up came after its claim was forgotten",
        *("leases", "ghost", 37),
        Fault("held bytes", 0.017, 1.0, 1, 0.053),
        Fault("held bytes", 1.517, 4.0, 2, -0.054),
    ),
    _known(
        "a frozen store carried out a take that was forgotten",
        *("leases", "ghost", 85),
        Fault("store frozen", 1.924, 4.0, 50, -0.072),
        Fault("drift", 2.573, 0.062, 2, 0.079),
    ),
    _known(
        "masters that lost their data one after another forgot a token ahead of the clocks",
        *("quorum", "tokens", 3744),
        Fault("held bytes", 0.07, 1.0, 8, -0.057),
        Fault("wipe", 1.046, 0.062, 9, 0.084),
        Fault("held bytes", 4.136, 2.0, 48, 0.052),
        Fault("wipe", 4.186, 0.062, 16, -0.062),
        Fault("skew", 4.336, 0.062, 49, 0.212),
        Fault("wipe", 6.836, 0.1, 50, 0.058),
    ),
    _known(
        "a blank master voted as soon as the ttl of whoever asked was over",
        *("quorum", "belief", 139),
        Fault("wipe", 1.073, 0.062, 7, 0.06),
        Fault("ttls differ", 8.663, 0.062, 14, 0.718),
    ),
    _known(
        "a waiter believed a lease that the new master had taken back",
        *("redis", "belief", 1),
        Fault("surviving connection", 0.0),
        Fault("switchover", 1.0, 0.1, 0, 0.5),
    ),
    _known(
        "an idle connection did not notice that its master had been a replica",
        *("redis", "belief", 1),
        Fault("surviving connection", 0.0),
        Fault("unreplicated", 1.0, 3.5),
        Fault("there and back", 1.4, 0.1),
        Fault("there and back", 2.0, 0.1),
        Fault("there and back", 2.4, 0.1),
    ),
    _known(
        "a release of a deleted record said released",
        *("redis", "truth", 1),
        Fault("record deleted", 1.0),
        Fault("record deleted", 1.5),
        Fault("record deleted", 2.5),
    ),
    _known(
        "a frozen server executed a take that was given up, and its slot was used",
        *("redis", "ghost", 3),
        Fault("store frozen", 1.0, 3.0),
    ),
)
