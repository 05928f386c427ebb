"""One configured cluster, shared by all sides, and which of its members to ask."""

from __future__ import annotations

from typing import Any, Final

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.stores.etcd.errors import Answered, exchange_error
from incumbent.stores.etcd.url import EtcdOptions
from incumbent.stores.url import Endpoint

__all__ = ["Endpoints", "Site", "share"]

_SHUN: Final = 5.0
"""Seconds for which a member that failed is asked last."""


class Endpoints:
    """The members in the order in which they are asked: the one that answered last, until it fails.

    Every change is one assignment.
    """

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.all = endpoints
        self._present = endpoints[0]
        self._shunned: dict[Endpoint, float] = {}

    @property
    def tries(self) -> int:
        """How often a request is tried: each member once, a lone one twice (a dead connection)."""
        return max(2, len(self.all))

    def best(self, now: float) -> Endpoint:
        """The member to ask now: the one that answered last, or failed longest ago."""
        if not self._shunned or self._shunned.get(self._present, 0.0) <= now:
            return self._present
        return min(self.all, key=lambda endpoint: self._shunned.get(endpoint, 0.0))

    def failed(self, endpoint: Endpoint, now: float) -> None:
        """It gave no answer, or answered that it cannot."""
        self._shunned[endpoint] = now + _SHUN
        if endpoint is self._present:
            self._present = min(self.all, key=lambda endpoint: self._shunned.get(endpoint, 0.0))

    def answered(self, endpoint: Endpoint) -> None:
        """It is well."""
        if self._shunned:
            self._shunned.pop(endpoint, None)
        self._present = endpoint


def share(now: float, until: float, others: int) -> float:
    """By when this member must have answered, so that `others` still have a chance."""
    return now + (until - now) / (others + 1)


class Site:
    """One configured cluster.

    `token`: of the present log-in; `proved`: it has served this process before.
    """

    def __init__(self, options: EtcdOptions, tls: Any = None) -> None:
        self.options = options
        self.where = options.shown
        self.endpoints = Endpoints(options.endpoints)
        self.restart_wait = options.restart_wait
        self.tls = tls
        self.token = ""
        self.proved = False

    def wants_login(self, error: Answered) -> bool:
        """Whether the log-in is what has to be repeated: nothing was carried out."""
        if error.stale_token or (error.no_user and self.options.username is not None):
            self.token = ""
            return True
        return False

    def failed(self, failure: Exception, *, doubt: bool) -> StoreError:
        """The exception for a request that no member answered. `doubt`: one perhaps did it."""
        return exchange_error(
            failure,
            self.where,
            doubt=doubt,
            proved=self.proved,
            with_certificate=self.options.cert is not None,
        )

    def unreachable(self, error: Exception) -> StoreUnavailable:
        """The exception for a request of which nothing depends."""
        return StoreUnavailable(f"{self.where} cannot be reached: {error}")
