"""How long a store that may have lost its data grants nothing, and how it says so. Pure."""

from __future__ import annotations

from incumbent.durations import say_seconds
from incumbent.policy import TTL_DEFAULT


def wait_after_restart(named: float | None, ttl: float, *learnt: float) -> float:
    """Seconds from a restart for which nothing is granted.

    A holder from before may believe for its own ttl, which is not the asker's. `named`: what the
    option `restart_wait` says, which is final; `ttl`: the asker's; `learnt`: ttls that records or
    markers tell of. Without the option it is the longest of them, and never less than the default.
    """
    return max(TTL_DEFAULT, ttl, *learnt) if named is None else named


def restart_words(where: str, what: str, age: float, left: float) -> str:
    """The refusal, with both ways out.

    `what` happened `age` seconds ago ("started", "lost its data"); it grants in `left` seconds.
    """
    ago = "less than a second ago" if age < 1 else f"{say_seconds(float(int(age)))} ago"
    wait = say_seconds(max(1.0, float(-int(-left // 1))))
    return (
        f"{where} {what} {ago}. For {wait} more nobody is given a lease, because a holder from"
        f" before may still be working. Wait {wait}, or if you know that there is none, name"
        " restart_wait=0 in the store's URL"
    )
