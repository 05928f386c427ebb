"""Which member to ask: the one that answered last, until it fails. Shared by both sides."""

from __future__ import annotations

from typing import Final

from incumbent.stores.etcd.options import Endpoint

__all__ = ["Endpoints", "share"]

_SHUN: Final = 5.0
"""Seconds for which a member that failed is asked last."""


class Endpoints:
    """The members in the order in which they are asked. Every change is one assignment."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.all = endpoints
        self._present = endpoints[0]
        self._shunned: dict[Endpoint, float] = {}

    @property
    def tries(self) -> int:
        """How often a request is tried: each member once, a lone one twice (a dead connection)."""
        return max(2, len(self.all))

    def best(self, now: float) -> Endpoint:
        """Whom to ask now: whoever answered last, or who failed longest ago."""
        if not self._shunned or self._shunned.get(self._present, 0.0) <= now:
            return self._present
        return min(self.all, key=lambda it: self._shunned.get(it, 0.0))

    def failed(self, endpoint: Endpoint, now: float) -> None:
        """It gave no answer, or said that it cannot."""
        self._shunned[endpoint] = now + _SHUN
        if endpoint is self._present:
            self._present = min(self.all, key=lambda it: self._shunned.get(it, 0.0))

    def answered(self, endpoint: Endpoint) -> None:
        """It is well."""
        if self._shunned:
            self._shunned.pop(endpoint, None)
        self._present = endpoint


def share(now: float, until: float, others: int) -> float:
    """By when this member must have answered, so that `others` still have a chance."""
    return now + (until - now) / (others + 1)
