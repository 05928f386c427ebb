"""The ledger's record of a `run --once-per` or `--slot`; no other `run` loads this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from incumbent import clock
from incumbent.cron.executor import without_secrets
from incumbent.cron.ledger import SlotState, runs_of
from incumbent.cron.once import OnceRun
from incumbent.cron.schedule import slot_id
from incumbent.decorators import begin_once_blocking
from incumbent.errors import StoreError
from incumbent.locks.leases import Lease, release_unless_lost
from incumbent.protocol.messages import UNRECORDED
from incumbent.stores.plan import run_blocking
from incumbent.supervise.run import Ending, release_after

_STATES = {"ended": SlotState.OK, "at_most_for": SlotState.TIMED_OUT, "lost": SlotState.LOST}
_COMMAND_SHOWN = 200


def begin(words: Sequence[str], lease: Lease) -> OnceRun | None:
    """Record the start; None if the slot is on record already.

    Raises StoreError; then nothing may run, and the lease and its slot were given back.
    """
    wall = clock.wall()
    what = without_secrets(" ".join(words))[:_COMMAND_SHOWN]
    try:
        return begin_once_blocking(lease, wall, f"once/{slot_id(wall)}", what)
    except StoreError:
        release_unless_lost(lease, undo_slot=True)
        raise


def release_recorded_slot(lease: Lease) -> str:
    """Release a lease whose slot the ledger has already; returns a line about that record."""
    slot = lease.belief.slot or ""
    try:
        record = lease.belief.link.store.read(lease.belief.key, clock.now() + 1.0)
        found = runs_of(record.fields).get(slot)
    except StoreError:
        found = None
    release_unless_lost(lease, undo_slot=True)
    by = f": {found[0].state} by {found[0].instance}" if found else ""
    return f"skipped: slot {slot} is on record already{by}"


def end(
    once: OnceRun, lease: Lease, ending: Ending | None, outcome: str, line: str
) -> Ending | None:
    """Record the end, and release the lease unless a process of CMD lives on.

    `ending`: None if nothing ran; the result says whether CMD outlived its lease.
    """
    if ending is None:
        run_blocking(once.undo())
        release_unless_lost(lease, undo_slot=True)
        return None
    code = ending.status
    state = _STATES.get(outcome, SlotState.FAILED)
    why = line if state is not SlotState.OK else ""
    if state is SlotState.OK and code:
        state, why = SlotState.FAILED, f"exit {code}"
    # Under the lease: the store takes the end only from the claim that still holds it.
    in_time = run_blocking(once.end(state, clock.wall(), code=code, why=why))
    if ending.survivors:
        return ending
    if not in_time:
        ending = release_after(lease, ending)
        # The ledger will show this run as lost, so we report it as lost too.
        return ending if ending.cause else replace(ending, cause=UNRECORDED, outlived=True)
    # The end was recorded under the lease: a loss of the lease from now on does not concern CMD.
    ending = replace(ending, confirmed=release_unless_lost(lease))
    run_blocking(once.prune(clock.wall()))
    return ending
