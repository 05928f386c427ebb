"""How long a store that may have lost its data grants nothing, and how it says so. Pure."""

from __future__ import annotations

from incumbent.durations import say_seconds
from incumbent.policy import TTL_DEFAULT

_APART = 2.0
"""Seconds that clocks may differ by, and a request take, without a word."""


def wait_after_restart(named: float | None, ttl: float, *learnt: float) -> float:
    """Seconds from a restart for which nothing is granted.

    A holder from before may believe for its own ttl, which is not the asker's. `named`: what the
    option `restart_wait` says, which is final; `ttl`: the asker's; `learnt`: ttls that records or
    markers tell of. Without the option it is the longest of them, and never less than the default.
    """
    return max(TTL_DEFAULT, ttl, *learnt) if named is None else named


def restart_words(where: str, what: str, age: float, left: float, *, apart: float = 0.0) -> str:
    """The refusal, with the ways out.

    `what` happened `age` seconds ago ("started", "lost its data"); it grants in `left` seconds.
    `apart`: another clock says that it happened so many seconds earlier. Then only the process that
    is refused knows how long it has to wait, and the next one does not.
    """
    ago = "less than a second ago" if age < 1 else f"{say_seconds(float(int(age)))} ago"
    wait = say_seconds(max(1.0, float(-int(-left // 1))))
    if apart >= _APART:
        earlier = say_seconds(float(int(apart)))
        return (
            f"{where} {what} {ago} by one clock, and {earlier} earlier by another: the clock of the"
            " store, of this host, or of the host that first saw it is wrong. For"
            f" {wait} more this process is given no lease, because a holder from before may still"
            f" be working; each new process may have to wait up to {earlier} longer. Set the clocks"
            " right, or if you know that there is no such holder, name restart_wait=0 in the"
            " store's URL"
        )
    return (
        f"{where} {what} {ago}. For {wait} more nobody is given a lease, because a holder from"
        f" before may still be working. Wait {wait}, or if you know that there is none, name"
        " restart_wait=0 in the store's URL"
    )
