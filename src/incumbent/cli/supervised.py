"""CMD under a lease, as `run`, `lead` and `work` have it: its environment, its socket, its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from incumbent.cli.parser import Request
from incumbent.locks import Lease, give_back
from incumbent.supervise.answers import child_environment
from incumbent.supervise.guarding import Guard
from incumbent.supervise.launch import Ready
from incumbent.supervise.plan import Course
from incumbent.supervise.run import Ending, Listener, supervise
from incumbent.supervise.signals import Signals

__all__ = ["supervise_command"]


def supervise_command(
    request: Request,
    url: str,
    lease: Lease,
    signals: Signals,
    guard: Guard,
    *,
    stop_on: Collection[int] = frozenset(),
    report: Callable[[Course], None] | None = None,
    listeners: Sequence[Listener] = (),
    ready: Ready | None = None,
    keep: bool = False,
) -> Ending:
    """Run the request's CMD to its end or to that of the lease, which is given back.

    `ready`: what was prepared for this term, else it is made now; closed at the end. `keep`: giving
    it back is always the caller's business. Raises CannotStart or GuardFault, and ConfigError if
    no socket can be made; the lease was given back then.
    """
    try:
        mine = ready or Ready(guard, lease.belief.policy.ttl)
    except BaseException:
        if not keep:
            give_back(lease, undo_slot=True)
        raise
    with mine:
        mine.socket.lease = lease
        return supervise(
            lease,
            request.words,
            _environment(request, url, lease, mine.socket.path),
            signals,
            guard,
            stop_on=stop_on,
            report=report,
            listeners=(mine.socket, *listeners),
            launch=mine.launch,
            keep=keep,
        )


def _environment(request: Request, url: str, lease: Lease, socket: str) -> dict[str, str]:
    return child_environment(
        os.environ,
        name=lease.name,
        holder=lease.holder,
        term=lease.fencing_token,
        slot=lease.belief.slot,
        share_store=url if request.on("share_store") else None,
        socket=socket,
    )
