"""What a process does at the loss of a lease: the user's callback, the end of the process, a note.

The keeper keeps these callbacks with the claim, so they refer to it weakly: a lease that nobody
has any more must be given back at once, not when the garbage of cycles is collected.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from incumbent import clock
from incumbent.errors import LeaseLost
from incumbent.lease import LeaseState
from incumbent.locks.callers import current_task
from incumbent.locks.options import OnLost
from incumbent.protocol.messages import claim_lost
from incumbent.runtime.buckets import Buckets
from incumbent.runtime.threads import notifier
from incumbent.unpatched import unpatched

if TYPE_CHECKING:
    from incumbent.protocol.claim import Claim
    from incumbent.runtime.keeper import Keeper

_log = logging.getLogger("incumbent")

_LOST = LeaseState.LOST
# The code of the commands for a loss, supervise.codes.LOST; not imported, as few locks need it.
_EXIT_LOST = 123
# Not sys.stderr: another thread may have its lock, and this process ends in a moment.
_STDERR = 2

ClaimRefs: TypeAlias = "Sequence[ref[Claim]]"


def first_lost_claim(claims: Sequence[Claim], now: float) -> Claim | None:
    lost = [it for it in claims if not it.machine.valid(now) and it.machine.state is _LOST]
    return min(lost, key=lambda claim: claim.machine.deadline, default=None)


def _lost_of(refs: ClaimRefs) -> Claim | None:
    return first_lost_claim([claim for it in refs if (claim := it())], clock.now())


_warned: set[str] = set()
"""Claims of the parent about which this child of a fork has warned."""


def warn_if_forked(claims: Sequence[Claim]) -> None:
    for claim in claims:
        if claim.machine.reason == "forked" and claim.id not in _warned:
            _warned.add(claim.id)
            _log.warning(
                "%s: this lease belongs to the parent of this process, which was forked after it"
                " was acquired, and holds nothing: acquire it here (in gunicorn: in"
                " post_worker_init)",
                claim.wanted.key.name,
            )


def call_if_lost(refs: ClaimRefs, on_lost: list[OnLost]) -> None:
    claim = _lost_of(refs)
    if claim is not None:
        notifier.call(partial(_call_once, on_lost, claim_lost(claim)))


def _call_once(on_lost: list[OnLost], lost: LeaseLost) -> None:
    """Call `on_lost` at the first loss only."""
    if on_lost:
        on_lost.pop()(lost)


def exit_if_lost(refs: ClaimRefs) -> None:
    claim = _lost_of(refs)
    if claim is not None:
        try:
            _say_at_once(f"incumbent: {claim_lost(claim)}; the process ends\n".encode())
        finally:
            # Not sys.exit: this is not the main thread, and no finally block may run any more.
            os._exit(_EXIT_LOST)


def _say_at_once(words: bytes) -> None:
    """Write to standard error unless that would block, as when its reader has stopped."""
    reader = unpatched("select", "poll")()
    reader.register(_STDERR, select.POLLOUT)
    if any(event & select.POLLOUT for _, event in reader.poll(0)):
        # A pipe that is ready takes this much at once.
        os.write(_STDERR, words[: select.PIPE_BUF])


def lapse_if_stranded(claims: Sequence[Claim], keeper: Keeper) -> None:
    """Have leases lapse whose body is in a task of a loop that is closed: it never ends."""
    task = current_task()
    for claim in claims if task is not None else ():
        keeper.watch_renewals(claim, partial(_lapse, ref(task), claim.ref))


def _lapse(task: ref[Any], of: ref[Claim]) -> None:
    caller, claim = task(), of()
    if caller and claim and not caller.done() and caller.get_loop().is_closed():
        # Renewed no longer: its deadline ends it, and calls those who watch it.
        Buckets.discard(claim)


def add_loss_note(error: BaseException, lost: LeaseLost) -> None:
    """Add a note on the loss to the body's own error, unless the error says the same."""
    if str(lost) != str(error):
        error.add_note(str(lost))
