"""A give: the request to give.lua, and the meaning of its reply. Pure."""

from __future__ import annotations

from typing import Any, Final

from incumbent.errors import OutcomeUnknown
from incumbent.model import PLAIN, Ask, GiveOutcome, Gone, Granted, Key, Parting, Released
from incumbent.stores.redis.records import quoted, value_start
from incumbent.stores.redis.resp import (
    PACKED_KEYS,
    SCRIPTS,
    Part,
    RequestBatch,
    RespProgram,
    milliseconds,
    pack_arguments,
)
from incumbent.stores.redis.site import Packer

_SHARED: Final = pack_arguments("", "", "shared")
"""The last arguments of the give of a shared lease."""
_RELEASED: Final = Released()
_GONE: Final = Gone()


def give_program(
    packer: Packer, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
) -> RespProgram[GiveOutcome]:
    """A release, or a closing."""
    request = give_request(packer, key, claim, token, parting)
    (reply,) = yield RequestBatch(request, 1)
    return read_give(packer, reply, key)


def give_request(
    packer: Packer, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
) -> bytes:
    """The request of a give. A shared lease is neither closed nor reserved."""
    closed_for, reserve_for, slot, shared = parting
    if shared:
        slot, closed_for, reserve_for = None, 0.0, None
    if not token or slot is not None or closed_for > 0:
        closed = milliseconds(closed_for) if closed_for > 0 else 0
        more = (quoted(reserve_for),) if reserve_for else ()
        return _pack_in_full(packer, key, claim, token, slot, closed, *more, shared=shared)
    before, after = packer.gives.get((key, shared)) or _prepare(packer, key, shared)
    secret = claim.encode()
    held = b"incumbent1 %b %d " % (secret, token)
    request = b"%b$%d\r\n%b\r\n%b" % (before, len(held), held, after)
    if not shared:
        return request
    return b"%b$%d\r\nincumbent1 %b \r\n%b" % (request, 12 + len(secret), secret, _SHARED)


def _prepare(packer: Packer, key: Key, shared: bool) -> tuple[bytes, bytes]:
    """The bytes before the arguments with the claim, and those after the first of these."""
    names = packer.naming.of(key)
    keys = [names.lease, names.record, names.line]
    after: tuple[Part, ...] = (names.channel,)
    if shared:
        keys.append(names.sharers)
        after = (names.channel, 0)
    if len(packer.gives) >= PACKED_KEYS:
        packer.gives.clear()
    before = SCRIPTS["give"].open_call(keys, 7 if shared else 2)
    packed = packer.gives[key, shared] = before, pack_arguments(*after)
    return packed


def _pack_in_full(
    packer: Packer,
    key: Key,
    claim: str,
    token: int | None,
    slot: str | None,
    closed: int,
    *more: Part,
    shared: bool = False,
) -> bytes:
    names = packer.naming.of(key)
    keys = [names.lease, names.record, names.line]
    if slot is not None:
        keys.append(names.slot(slot))
    elif shared:
        keys.append(names.sharers)
        more = (*(more or ("", "")), "shared")
    held, any_token = value_start(claim, token), value_start(claim, None)
    return SCRIPTS["give"].call(len(keys), *keys, held, names.channel, closed, any_token, *more)


def read_give(packer: Packer, reply: Any, key: Key) -> GiveOutcome:
    """The outcome of a give."""
    if type(reply) is not int:
        raise packer.unusable(reply, key)
    return _RELEASED if reply else _GONE


def give_back(packer: Packer, key: Key, grant: Granted, ask: Ask) -> RespProgram[None]:
    """Give back a grant that is not believed; its claim may take again.

    Later takes do not trust the record that the grant left: see give.lua. Raises OutcomeUnknown if
    the grant may still be stored.
    """
    slot, shared = ask.slot.name if ask.slot else None, ask.permits is not None
    claim, token, undo = grant.claim, grant.token, ("", "undo")
    request = _pack_in_full(packer, key, claim, token, slot, 0, *undo, shared=shared)
    (reply,) = yield RequestBatch(request, 1)
    if reply != 1:
        what = "it was not found" if reply == 0 else f"the answer was {str(reply)!r}"
        raise OutcomeUnknown(
            f"{packer.where}: a grant was not believed and could not be given back: {what}"
        )
