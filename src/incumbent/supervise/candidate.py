"""The lock of the commands that wait in public: `incumbent run` and `lead`."""

from __future__ import annotations

from typing import Any

from incumbent.durations import Duration
from incumbent.errors import StoreError
from incumbent.locks.leases import Lease
from incumbent.locks.lock import Lock
from incumbent.locks.options import rank_from
from incumbent.policy import Policy
from incumbent.protocol.acquire import OnRefusal, acquire
from incumbent.stores.plan import run_blocking

_STANDS_FOR = 1.5
"""The length of a candidacy in ttls: a candidate asks again at least once a ttl."""


class CandidateLock(Lock):
    """A lock for `incumbent run`, and for `lead`: that one lists it as a candidate while it waits.

    Their status pages show the wait. `permits`: the number of holders at once; None: one.
    """

    __slots__ = ("_permits",)

    def __init__(
        self,
        name: str,
        *,
        permits: int | None = None,
        priority: int | None = None,
        step_down_after: Duration | None = None,
        **settings: Any,
    ) -> None:
        self._permits = permits
        super().__init__(name, **settings)
        can = self._link.engine.capabilities
        rank = rank_from(priority, step_down_after, self._wanted, can)
        self._wanted = self._wanted._replace(rank=rank)

    def ranked(self, meta: bytes) -> bytes:
        """The metadata for the record, with this candidate's priority added."""
        from incumbent.election import with_rank

        return with_rank(meta, self._wanted.rank)

    def stand(self, meta: bytes, on_refusal: OnRefusal) -> Lease:
        """Wait for the lease for ever; `on_refusal` gets every outcome that is no grant.

        `meta`: the metadata for the record. Raises a permanent StoreError, and the exceptions of
        signal handlers.
        """
        policy = self.policy
        candidacy = policy.ttl * _STANDS_FOR + policy.request_timeout
        wanted = self._wanted.asking(meta=meta, candidacy=candidacy)
        return Lease(*self._arm(run_blocking(acquire(self._link.port, wanted, None, on_refusal))))

    def take(self, timeout: Duration | None, on_refusal: OnRefusal) -> Lease:
        """Acquire without being listed; `on_refusal` gets every outcome that is no grant."""
        wait = self._seconds_to_wait(timeout)
        return Lease(
            *self._arm(run_blocking(acquire(self._link.port, self._wanted, wait, on_refusal)))
        )

    @property
    def holder(self) -> str:
        """This candidate's name, as others see it."""
        return self._wanted.holder

    @property
    def policy(self) -> Policy:
        """The policy of the leases."""
        return self._wanted.policy

    def log_outage(self, error: StoreError) -> None:
        """Log that the store is unavailable, at most once a minute."""
        self._link.keeper.log_outage(self._wanted.key, error)
