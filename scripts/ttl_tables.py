"""Puts the tables of docs/ttl-and-grace.md into the page, computed by `incumbent.Policy` itself."""

from __future__ import annotations

import re
from pathlib import Path

from incumbent import ConfigError, Policy
from incumbent.durations import say_seconds

PAGE = Path(__file__).parent.parent / "docs" / "ttl-and-grace.md"
TTLS = (1, 2, 5, 9, 15, 30, 60, 300, 3600)
GRACES = (0, 1, 2, 5, 10, 30, 60, 300)


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _said(seconds: float) -> str:
    return f"{round(seconds, 2):g} s" if seconds < 600 else say_seconds(round(seconds))


def by_ttl() -> str:
    """What each ttl means with the defaults."""
    head = (
        *("`ttl`", "renewed every", "one request may take", "`grace`"),
        *("work stopped, since the last proof", "not believed, since the last proof"),
        "an outage of the store that stops nobody",
    )
    rows = [_row(*head), _row(*["---"] * len(head))]
    for ttl in TTLS:
        policy = Policy(ttl)
        times = (
            *(policy.ttl, policy.renew_every, policy.request_timeout, policy.grace),
            *(policy.renew_deadline, policy.span),
            policy.renew_deadline - policy.renew_every - policy.request_timeout,
        )
        rows.append(_row(*map(_said, times)))
    return "\n".join(rows)


def least_ttl(grace: float) -> float:
    """The least whole second of a ttl that has this grace."""
    for ttl in range(1, 86_400):
        try:
            Policy(ttl, grace=grace)
        except ConfigError:
            continue
        return ttl
    raise AssertionError(grace)


def by_grace() -> str:
    """The least ttl for each grace."""
    head = ("clean-up takes, so `grace`", "least `ttl`", "work stopped, since the last proof")
    rows = [_row(*head), _row(*["---"] * len(head))]
    for grace in GRACES:
        ttl = least_ttl(grace)
        rows.append(_row(*map(_said, (grace, ttl, Policy(ttl, grace=grace).renew_deadline))))
    return "\n".join(rows)


def page_with_tables(page: str) -> str:
    for name, made in (("ttl", by_ttl()), ("grace", by_grace())):
        page = re.sub(
            rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)",
            lambda found, made=made: f"{found[1]}\n{made}\n\n{found[2]}",
            page,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
