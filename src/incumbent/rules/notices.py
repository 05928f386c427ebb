"""Fields beside a lease: the switches "pause" and "resign", and the guards of a `put`."""

from __future__ import annotations

from typing import Final, Literal

from incumbent.model import Absent, ByClaim, ByVersion, Field, Guard, Holding, Notice

PAUSE: Final = "pause"
RESIGN: Final = "resign"
BREAK: Final = "break"
"""The kind of a notice in the field RESIGN that ends the work without a hand-over."""


def encode_notice(
    *,
    who: str = "",
    reason: str = "",
    to: str = "",
    token: int = 0,
    kind: str = "",
    priority: int | None = None,
    through_token: int = 0,
) -> bytes:
    """The field's value; `token` addresses one holding, so that the notice never hits the next.

    `through_token`: the notice is for every holding whose token is at most this; 0: only for
    `token`. So it reaches all present sharers of a lease, and none that comes later.

    `priority`: the priority of the candidate that asks; an operator has none.
    """
    # Imported here, because most locks are made, held and released without a notice.
    import json

    facts: dict[str, str | int] = {"who": who, "reason": reason, "to": to, "token": token}
    if kind:
        facts["kind"] = kind
    if priority is not None:
        facts["priority"] = priority
    if through_token:
        facts["upto"] = through_token
    return json.dumps(facts).encode()


def notice_to(
    holding: Holding, *, who: str, reason: str = "", to: str = "", kind: str = ""
) -> bytes:
    """The notice of an operator for this holding.

    If the lease is shared, it is also for all earlier holdings, so that none is left out.
    """
    through = 0 if holding.permits is None else holding.token
    return encode_notice(
        who=who, reason=reason, to=to, kind=kind, token=holding.token, through_token=through
    )


def encode_pause(*, who: str, reason: str, when: float, **more: object) -> bytes:
    """The value of the field "pause"; `when`: seconds since 1970."""
    import json

    return json.dumps({"who": who, "reason": reason, "when": when, **more}).encode()


def read_notice(value: bytes) -> dict[str, str | int]:
    """The value's fields; a value in another format still counts as a notice, without fields."""
    import json

    try:
        fields = json.loads(value)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def notices_for(token: int, pause: bytes | None, resign: bytes | None) -> tuple[Notice, ...]:
    """The notices for the holder with `token`."""
    if pause is None and resign is None:
        return ()
    found = []
    # First, since the holder goes by the first notice, and a pause concerns every other one too.
    if pause is not None:
        fields = read_notice(pause)
        found.append(Notice("pause", str(fields.get("who", "")), str(fields.get("reason", ""))))
    if resign is not None:
        fields = read_notice(resign)
        through = fields.get("upto")
        if fields.get("token") == token or (isinstance(through, int) and token <= through):
            to = str(fields.get("to", ""))
            who, reason = str(fields.get("who", "")), str(fields.get("reason", ""))
            asked: Literal["break", "resign"] = BREAK if fields.get("kind") == BREAK else RESIGN
            found.append(Notice("transfer" if to else asked, who, reason, to))
    return tuple(found)


def guard_holds(guard: Guard, old: Field | None, held: tuple[str, int] | None) -> bool:
    """Whether a `put` may overwrite `old`; `held`: claim and token of the present holding."""
    match guard:
        case None:
            return True
        case Absent():
            return old is None
        case ByVersion(version):
            return old is not None and old.version == version
        case ByClaim(claim, token):
            return held == (claim, token)
