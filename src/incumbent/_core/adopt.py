"""Taking over a lease that another process of this host was granted and no longer believes in."""

from __future__ import annotations

from incumbent._core.held import Held, Wanted
from incumbent._core.port import Port
from incumbent.model import Granted

__all__ = ["adopt"]


def adopt(port: Port, wanted: Wanted, grant: Granted, sent: float) -> Held | None:
    """Hold what was granted to a request sent at or after `sent`, an instant of the host's clock.

    The deadline counts from then, as for who asked. None, and the store will be told, if it is too
    late to act on.
    """
    held = Held(port, wanted)
    held.claim = grant.claim
    held.machine.sent(sent)
    now = port.now()
    if held.machine.granted(grant, now):
        held.began = now
        return held
    held.doubted(now)
    held.machine.abandoned()
    port.hand_over(held.debt(now, undo_slot=True))
    return None
