"""The Lua scripts of this folder, and a request of theirs with the script itself in it."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Final

from incumbent.stores.redis.resp import Script, pack

__all__ = ["LOADS", "SCRIPTS", "as_eval"]


class _OfQuorum(Script):
    def __init__(self, name: str) -> None:
        self.text = (Path(__file__).parent / f"{name}.lua").read_bytes()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()


SCRIPTS: Final = {
    name: _OfQuorum(name)
    for name in ("take", "give", "revoke", "renew", "plant", "promise", "accept", "found", "look")
}
LOADS: Final = tuple(pack("SCRIPT", "LOAD", script.text) for script in SCRIPTS.values())
_EVALSHA: Final = b"$7\r\nEVALSHA\r\n$40\r\n"
_TEXTS: Final = {script.sha: script.text for script in SCRIPTS.values()}


def as_eval(request: bytes) -> bytes:
    """The same single request with the script itself in place of its name."""
    start = request.index(_EVALSHA)
    end = start + len(_EVALSHA) + 40
    text = _TEXTS[request[end - 40 : end]]
    return b"%b$4\r\nEVAL\r\n$%d\r\n%b%b" % (request[:start], len(text), text, request[end:])
