"""A new quorum: all nodes are blank, and need not wait for holders from before."""

from __future__ import annotations

from typing import Final

from incumbent.clock import now as _now
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.group import Quorum
from incumbent.stores.quorum.panel import Panel

__all__ = ["found"]

_WITHIN: Final = 1.0


async def found(quorum: Quorum, panel: Panel, until: float) -> None:
    """Once for each process: if all nodes are blank, mark them as founded together."""
    if quorum.dialect.founded or not panel.blank:
        return
    quorum.dialect.founded = True
    # The connections may be old: what counts is that all are blank now.
    heard = await panel.ask([quorum.dialect.marker()] * len(quorum.names), until)
    if any(isinstance(it, Silent) or it[0] is not None for it in heard):
        return
    last = quorum.clock.unix_us(min(until, _now() + _WITHIN))
    await panel.ask([quorum.dialect.found(last)] * len(quorum.names), until)
