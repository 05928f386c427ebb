"""How long a lease lasts, and how much of that time its holder may use.

    sent                     renew_deadline        deadline          the store's expiry
     |--- renew_every ---|---- ... ----|------ grace ------|-- margin + drift --|-- lock_delay --|
                                       stop the work       believe no longer

The store is asked to keep the lease for the whole line, `kept_for`. `lock_delay` is for the work of
a failed holder, which may go on where nobody can stop it; a release ends the delay with the lease.

The deadline counts from *before* the request was sent (Chubby, Burrows 2006, section 2.8, keeps the
same conservative order); the drift bound follows Gray and Cheriton, "Leases", 1989, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from incumbent.durations import DAY, Duration, parse_duration, say_seconds
from incumbent.errors import ConfigError

TTL_DEFAULT = 15.0
TTL_MIN = 0.1
TTL_MAX = DAY


@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """All times of a lease, in seconds; `rho` is the bound of clock drift (a ratio).

    `lock_delay`: how much longer than `ttl` the store keeps the lease of a holder that failed.

    >>> Policy("30s", grace="2s", request_timeout="500ms").renew_every
    6.0
    """

    ttl: float
    """Seconds without a renewal after which others get the lease (15)."""
    renew_every: float
    """Seconds between renewals (ttl / 5)."""
    grace: float
    """Seconds between the stop of the work and the end of the proof (min(5, ttl / 3))."""
    margin: float
    """Seconds between the end of the proof and that of the ttl (max(0.05, ttl / 60))."""
    request_timeout: float
    """Seconds that a request to the store may take (min(1, ttl / 6))."""
    rho: float
    """The bound of clock drift: clocks run at most this much faster or slower (0.01)."""
    lock_delay: float
    """Seconds beyond the ttl for which a name stays closed after a holder that failed (0)."""
    kept_for: float = field(init=False)
    """Seconds for which the store keeps a lease without a renewal: `ttl + lock_delay`."""
    span: float = field(init=False)
    """From the instant before sending to the deadline: `ttl * (1 - 2 rho) - margin`."""
    renew_deadline: float = field(init=False)
    """From the instant before sending until the work is stopped: `span - grace`."""

    def __init__(
        self,
        ttl: Duration = TTL_DEFAULT,
        *,
        grace: Duration | None = None,
        renew_every: Duration | None = None,
        request_timeout: Duration | None = None,
        margin: Duration | None = None,
        rho: float = 0.01,
        lock_delay: Duration = 0.0,
    ) -> None:
        """Fill in the defaults. Raises ConfigError, with the numbers, if the times cannot fit."""
        life = parse_duration(ttl, "ttl", least=TTL_MIN, most=TTL_MAX)
        times = (
            life,
            _given(grace, "grace", min(5.0, life / 3)),
            _given(renew_every, "renew_every", life / 5),
            _given(request_timeout, "request_timeout", min(1.0, life / 6)),
            _given(margin, "margin", max(0.05, life / 60)),
            rho,
        )
        names = ("ttl", "grace", "renew_every", "request_timeout", "margin", "rho")
        for name, value in zip(names, times, strict=True):
            object.__setattr__(self, name, value)
        delay = parse_duration(lock_delay, "lock_delay", most=TTL_MAX)
        object.__setattr__(self, "lock_delay", delay)
        object.__setattr__(self, "kept_for", life + delay)
        span, left = _fit(*times)
        object.__setattr__(self, "span", span)
        object.__setattr__(self, "renew_deadline", left)


def make_policy(
    ttl: Duration = TTL_DEFAULT, *, grace: Duration | None = None, lock_delay: Duration = 0.0
) -> Policy:
    """The policy with these times: one object for all equal ones. Raises as `Policy`."""
    life = parse_duration(ttl, "ttl", least=TTL_MIN, most=TTL_MAX)
    delay = parse_duration(lock_delay, "lock_delay", most=TTL_MAX)
    return _shared(life, None if grace is None else _given(grace, "grace", 0.0), delay)


@lru_cache(maxsize=256)
def _shared(ttl: float, grace: float | None, lock_delay: float) -> Policy:
    return Policy(ttl, grace=grace, lock_delay=lock_delay)


def _given(value: Duration | None, what: str, default: float) -> float:
    return default if value is None else parse_duration(value, what, most=TTL_MAX)


def _fit(
    ttl: float, grace: float, renew_every: float, request: float, margin: float, rho: float
) -> tuple[float, float]:
    """`span` and `renew_deadline`. Raises ConfigError."""
    if type(rho) not in (int, float) or not 0 <= rho < 0.25:
        raise ConfigError(f"rho={rho!r} is not a bound of clock drift: 0 <= rho < 0.25", name="rho")
    for what, seconds in (("renew_every", renew_every), ("request_timeout", request)):
        if seconds <= 0:
            raise ConfigError(f"{what} must be above 0", name=what)
    # Twice rho: our clock may be slow by that much while the store's is fast by as much.
    span = ttl * (1 - 2 * rho) - margin
    left = span - grace
    if renew_every + request >= left:
        raise ConfigError(_does_not_fit(ttl, grace, renew_every, request, margin, rho), name="ttl")
    return span, left


def _does_not_fit(
    ttl: float, grace: float, renew_every: float, request: float, margin: float, rho: float
) -> str:
    used = 2 * rho * ttl + margin + grace
    return (
        f"ttl={say_seconds(ttl)} is too short: drift {say_seconds(2 * rho * ttl)}, margin"
        f" {say_seconds(margin)} and grace {say_seconds(grace)} use {say_seconds(used)} of it,"
        f" which leaves {say_seconds(max(0.0, ttl - used))} to act; one renewal needs"
        f" {say_seconds(renew_every)} (renew_every) + {say_seconds(request)} (request_timeout)."
        " Use a longer ttl or a shorter grace."
    )
