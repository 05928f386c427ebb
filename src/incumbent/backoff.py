"""Full-jitter exponential backoff (Brooker, "Exponential Backoff And Jitter", AWS, 2015)."""

from __future__ import annotations

__all__ = ["backoff_delay"]


def backoff_delay(tries: int, jitter: float, *, base: float = 0.05, cap: float = 5.0) -> float:
    """Seconds to wait after the `tries`-th failure in a row; `jitter` is uniform in [0, 1)."""
    # 2 ** 30 * base is far above any cap; the bound keeps the power from overflowing.
    return jitter * min(cap, base * 2.0 ** min(tries, 30))
