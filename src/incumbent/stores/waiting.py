"""What the waiting of this process has met with, over all its stores, for metrics."""

from __future__ import annotations

from collections import Counter

__all__ = ["count_loss", "subscription_losses"]

_counts: Counter[str] = Counter()


def count_loss() -> None:
    """A subscription was lost, or could not be had."""
    # Two threads may count as one: rare, and nothing is decided by it.
    _counts["lost"] += 1


def subscription_losses() -> int:
    """How often that has happened in this process."""
    return _counts["lost"]
