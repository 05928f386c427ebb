"""Which incarnation of a cluster this is, and what shows that it is another one. Pure.

A cluster that is restored from a snapshot keeps its id with etcd's defaults, its revisions go on
from the snapshot, and so may its leases. What it does not keep is the log: its index begins again.
Each entry of the log raises the revision by one at most, so within one incarnation
`index - revision` never falls. The marker under the prefix tells what it was when the marker was
written; a lower one belongs to another incarnation.

A data folder that was put back, and `--force-new-cluster` on a member that lagged behind, bring
back an earlier state *with* its log. Who has seen a later revision, or a later entry of the log,
notices it; a process that is new cannot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Incarnation", "Status", "differs", "later", "status_of"]


class Incarnation(NamedTuple):
    """The incarnation of the cluster, as the marker under the prefix says.

    `base` + a revision is a fencing token; `value` is the marker's, in base64 (its revision may be
    the same in the next incarnation); `at` the instant (of clock.now) at which this one began, as
    the servers' clocks tell. `term` and `applied`: the last entry of the log that a member had
    carried out, shortly before the marker was written at the revision `modified`; 0 where no
    member told.
    """

    epoch: str
    base: int
    value: str
    at: float
    cluster: str = ""
    term: int = 0
    applied: int = 0
    modified: int = 0


class Status(NamedTuple):
    """What a member has carried out: the index and the term of the log's last entry."""

    cluster: str
    term: int
    applied: int
    revision: int


def status_of(reply: dict[str, Any]) -> Status | None:
    """Of an answer of etcd's Maintenance.Status; None if it does not say."""
    header = reply.get("header", {})
    if "raftAppliedIndex" not in reply or "revision" not in header:
        return None
    return Status(
        str(header.get("cluster_id", "")),
        int(reply.get("raftTerm", 0)),
        int(reply["raftAppliedIndex"]),
        int(header["revision"]),
    )


def differs(known: Incarnation, met: Status | None, now: Status) -> bool:
    """Whether a member that has carried out all that was asked before is of another incarnation.

    `met`: the furthest state of a member that this process has met. One that lags behind, or is
    starting, may look different too: it has to carry something out first.
    """
    if now.cluster != known.cluster or now.revision < known.modified:
        return True
    # The log's next leader has all that was carried out before: a later term has later entries.
    if met is not None and now.term > met.term and now.applied < met.applied:
        return True
    if not known.applied:
        return False
    return now.term < known.term or now.applied - now.revision < known.applied - known.modified


def later(met: Status | None, now: Status) -> Status:
    """The further one of the two."""
    return now if met is None or (met.term, met.applied) < (now.term, now.applied) else met
