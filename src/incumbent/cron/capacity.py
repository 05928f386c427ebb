"""This instance's share of what is due: for how much workers stand by, and how fast it claims."""

from __future__ import annotations

from contextlib import suppress
from math import ceil, inf
from typing import Final

from incumbent import clock, meters
from incumbent.cron.presence import PRESENCE, presences, up_now
from incumbent.errors import StoreError
from incumbent.model import Key
from incumbent.protocol.link import Link

AHEAD: Final = 15.0
"""Seconds for which to look ahead."""
_MOST: Final = 24
"""Workers, of about 13 MB each; what is due beyond them is forked then, and takes longer."""
_MORE: Final = 1.25
"""Times the even share: chance spreads runs over the instances."""
_LINGER: Final = 3.0
"""Seconds for which workers stay that are not needed: no end in the middle of a burst."""
_SPREAD, _SPREAD_MOST = 0.004, 0.3
"""Seconds between two claims of one instant, so that the instances of a fleet mix."""
_FIRST_SPREAD, _A_RUN = 0.02, 0.005
"""Seconds: chance, and a handicap for each run that is on here."""
_COUNT_EVERY: Final = 60.0
_WITHIN: Final = 1.0


class Capacity:
    """Of one instance."""

    def __init__(self, link: Link, namespace: str) -> None:
        self._store = link.store
        self._key = Key(namespace, PRESENCE)
        self.instances = 1
        """That are up, as far as is known."""
        self._count_at = -inf
        self._kept = 0
        self._lower_at = -inf

    def runs(self, jobs: int, waiting: int, room: float) -> tuple[int, int]:
        """How many workers to have ready, and how many of those that are idle to keep.

        `jobs`: those with a slot within AHEAD, anywhere; `waiting`: slots for which there was no
        room here; `room`: for runs.
        """
        # For a single one it would not be worth it: the other instances would prepare in vain.
        share = ceil(_MORE * jobs / self._up()) if jobs > 1 else 0
        wanted, now = int(min(_MOST, max(share, waiting), room)), clock.now()
        if wanted >= self._kept or now >= self._lower_at:
            self._kept, self._lower_at = wanted, now + _LINGER
        return wanted, self._kept

    def pause(self, claims: int, refused: int, load: int, chance: float) -> float:
        """Seconds before one of `claims`; `refused`: in a row before it; `chance`: from [0, 1)."""
        if claims == 1:
            return chance * _FIRST_SPREAD + min(load, 10) * _A_RUN
        # One that runs more than an even share leaves the next ones to others; one that is refused
        # again and again comes too late for most.
        slower = 0.5 + min(load * self.instances / claims, 4.0) + min(refused, 8) / 4
        return chance * 2 * slower * min(_SPREAD, _SPREAD_MOST / claims)

    def _up(self) -> int:
        now = clock.now()
        if now >= self._count_at:
            self._count_at = now + _COUNT_EVERY
            # Not knowing it wastes workers, and nothing else.
            with suppress(StoreError), meters.asking():
                up = up_now(presences(self._store.read(self._key, now + _WITHIN)), clock.wall())
                self.instances = max(1, len(up))
        return self.instances
