"""Whether a server has our functions, and having it load them: for `doctor`. Pure.

`needed`: functions are what the store's users call (`functions=yes`); others only like to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import hiredis

from incumbent.stores.redis.functions import LIBRARIES, LIBRARY, LIBRARY_NAME, RENEW_FUNCTION
from incumbent.stores.redis.resp import Program, Step, pack

__all__ = ["load_functions", "look_at_functions"]

Finding = tuple[str, str, str]

_PROBE: Final = "probe"
# Who may call functions may not list them, and the other way round.
_LOOK: Final = pack("FCALL", RENEW_FUNCTION, 0, _PROBE, 1) + pack(
    "FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARIES}*"
)
_LOAD: Final = pack("FUNCTION", "LOAD", "REPLACE", LIBRARY)

_FIX: Final = "an administrator runs `incumbent doctor --fix`"
_OLD: Final = "leave functions=yes out, so that scripts are sent, or upgrade it"
_HERE: Final = ("ok", f"the functions of this release are loaded ({LIBRARY_NAME})", "")
_OPTIONAL: Final = "only users with functions=yes need it"


def look_at_functions(*, needed: bool) -> Program[list[Finding]]:
    """Whether they are there and current."""
    called, listed = yield Step(_LOOK, 2)
    others = _libraries(listed)
    if _is_answer(called) or LIBRARY_NAME in others:
        return [_HERE, *(_may_not_call(called) if needed else ())]
    if needed:
        return [_missing(called, others)]
    if others:
        what = f"functions of another release are loaded ({', '.join(others)}), not of this one"
        return [("warning", what, f"{_FIX}: users with functions=yes need it")]
    return []


def load_functions(*, needed: bool) -> Program[list[Finding]]:
    """Have them loaded where they are not. May be repeated."""
    (called, _) = yield Step(_LOOK, 2)
    if _is_answer(called):
        return [_HERE]
    (answer,) = yield Step(_LOAD, 1)
    if isinstance(answer, bytes):
        return [("ok", f"the functions of this release are now loaded ({LIBRARY_NAME})", "")]
    what, todo = _why_not(str(answer))
    return [("error", what, todo) if needed else ("warning", what, f"{_OPTIONAL}: {todo}")]


def _is_answer(called: Any) -> bool:
    return bool(called == [_PROBE.encode()])


def _libraries(listed: Any) -> Sequence[str]:
    """The names of the loaded libraries of all releases; none if that is not to be seen."""
    if not isinstance(listed, list):
        return ()
    about = (
        dict(zip(each[::2], each[1::2], strict=False)) for each in listed if isinstance(each, list)
    )
    names = (each.get(b"library_name") for each in about)
    return [name.decode("utf-8", "replace") for name in names if isinstance(name, bytes)]


def _may_not_call(called: Any) -> list[Finding]:
    if not isinstance(called, hiredis.ReplyError):
        return []
    return [_missing(called, ())]


def _missing(called: Any, others: Sequence[str]) -> Finding:
    text = str(called)
    if text.startswith("ERR Function not found"):
        older = f"; those of another release are ({', '.join(others)})" if others else ""
        return ("error", f"the functions of this release are not loaded{older}", _FIX)
    if text.startswith("NOPERM"):
        return (
            "error",
            f"this user may not call functions, the right +fcall is missing: {text}",
            "grant it what docs/redis.md has under least privilege",
        )
    if text.startswith("ERR unknown command"):
        return ("error", "it has no functions: those came with Redis 7", _OLD)
    return ("error", f"our functions cannot be called: {text}", "look at its log")


def _why_not(text: str) -> tuple[str, str]:
    what = f"the functions cannot be loaded: {text}"
    if text.startswith("NOPERM"):
        return (
            f"this user may not load functions, the right +function|load is missing: {text}",
            "run doctor --fix with the login of an administrator",
        )
    if text.startswith("READONLY"):
        return what, "use the address of the master"
    if text.startswith("ERR unknown command"):
        return "it has no functions: those came with Redis 7", _OLD
    return what, "see what it says, and run it again"
