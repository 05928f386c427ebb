"""What this process last wrote of some names, so that an operation may begin without reading.

    client                                      store
      | swap 7: a permit is mine ------------->   |
      |   <---------------- done: version 8 at 9s |
      | swap 8: it is given back ------------->   |
      |   <------------------------------- done   |

This alone decides nothing. The store carries the swap out if the record still has this version and
incarnation, and nobody has joined its line since; if not, its reply says what it has instead.
"""

from __future__ import annotations

from typing import Final

from incumbent import clock
from incumbent.model import Key
from incumbent.rules.record import Instant, dated
from incumbent.stores.registers import Incarnation, Seen, Swap, Wanted

_NAMES: Final = 1000
# Seconds after which others have most likely written something else.
_FRESH: Final = 10.0
# So that a store's clock is never taken for later than it is, even if it runs slowly.
_SLOWER: Final = 0.999

_now = clock.now


class Recall:
    """What was written last, by name; each is recalled once."""

    def __init__(self) -> None:
        self._written: dict[Key, tuple[float, Seen]] = {}

    def note(self, swap: Swap, version: int, at: Instant) -> None:
        """Keep what a swap has written, with its version, at this instant of the store's clock.

        Only of a name that several may share: other leases are given back by one request anyway.
        """
        grants = (*swap.seen.record.grants, *swap.record.grants)
        if all(grant.permits is None for grant in grants):
            return
        if len(self._written) >= _NAMES:
            self._written.clear()
        record = dated(swap.record, at)
        # Whoever had joined is in the record now; whether others came since, the
        # next swap finds out.
        seen = swap.seen._replace(record=record, version=version, now=at, wall=at, joined=())
        self._written[swap.wanted.key] = _now(), seen._replace(beside={}, recalled=True)

    def of(self, wanted: Wanted) -> Seen | None:
        """What is known of a name; None also if values beside its record are needed."""
        # Taken out: of two that begin with the same version one would be refused.
        noted, seen = self._written.pop(wanted.key, (0.0, None))
        passed = (_now() - noted) * _SLOWER
        if seen is None or wanted.beside or passed > _FRESH:
            return None
        us, (epoch, age, longest) = int(passed * 1e6), seen.incarnation
        known = Incarnation(epoch, age + passed, longest)
        return seen._replace(now=seen.now + us, wall=seen.wall + us, incarnation=known)
