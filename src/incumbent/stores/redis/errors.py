"""The errors of a server, as the contract's three answers.

The rule of the table: an answer that begins with one of its words was given *instead of* carrying
the request out. After any other error, the request may have been carried out.
"""

from __future__ import annotations

import re
from typing import Any, Final

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.net.pool import Broken
from incumbent.stores.findings import restart_words


class Outdated(Broken):
    """The connection's facts about its server are outdated; certainly nothing was done."""

    def __init__(self, why: str) -> None:
        super().__init__(why, sent=False)


class TooLate(Outdated):
    """A take reached the server after its deadline; certainly nothing was done."""


class Demoted(StoreUnavailable):
    """The server is no longer a master: its clients must find another."""


class Moved(StoreUnavailable):
    """Another node of the cluster has the key: `address`, or "" if none was named.

    `ask`: go there for this one request only, because the key is being moved there.
    """

    def __init__(
        self, message: str = "", *, address: str = "", ask: bool = False, **about: Any
    ) -> None:
        super().__init__(message, **about)
        self.address = address
        self.ask = ask


_REFUSED: Final[dict[str, tuple[str, float | None]]] = {
    "LOADING": ("it is loading its data", 0.5),
    "MASTERDOWN": ("it is a replica that has lost its master", 1.0),
    "CLUSTERDOWN": ("its cluster is down", 1.0),
    "READONLY": ("it is a replica, which cannot grant leases: use the address of the master", 1.0),
    "BUSY": ("it is busy with another client's script", 0.5),
    "OOM": ("it is out of memory: raise its maxmemory, or remove data", 1.0),
    "MISCONF": ("it cannot write to its disk and refuses changes", 1.0),
    "NOREPLICAS": ("it has too few replicas to accept changes (min-replicas-to-write)", 1.0),
    "MOVED": ("it is part of a cluster: write redis+cluster://; another node has the key", None),
    "ASK": ("it is part of a cluster, and the key is moving to another node", 0.1),
    "TRYAGAIN": ("it is part of a cluster, and the key is moving to another node", 0.1),
    "CROSSSLOT": ("it is part of a cluster, and the keys do not share a slot", None),
    "NOAUTH": ("it wants a password", None),
    "WRONGPASS": ("it refuses the user name or the password", None),
    "NOPERM": ("this user may not do that (see the ACL rule in the documentation)", None),
    "WRONGTYPE": ("somebody keeps another type of value there; it was left alone", None),
    "DENIED": ("it runs in protected mode", None),
    "max clients": ("it has no connection left for us: raise its maxclients", 1.0),
    "no command": ("it lacks a command that leases need: see the versions in the docs", None),
}
_ERR: Final = {
    "ERR max number of clients": "max clients",
    "ERR unknown command": "no command",
}
"""Refusals without an error code of their own."""
_FINAL_AT_FIRST: Final = frozenset(
    {"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "MOVED", "CROSSSLOT", "no command"}
)


def answered_error(text: str, where: str, key: str = "", *, proved: bool = True) -> StoreError:
    """The exception for an error that the server answered.

    `proved`: this server has served us before, so even a wrong password may be temporary
    (a failover, a rotation).
    """
    code = _code(text)
    if code == "NOSCRIPT":
        return StoreUnavailable(f"{where} has forgotten a script that it was just sent")
    if code not in _REFUSED:
        return OutcomeUnknown(f"{where} answered {text!r}; perhaps the request was carried out")
    why, after = _REFUSED[code]
    if code in ("MOVED", "ASK"):
        return _moved(text, f"{where} refused the request: {why} ({code})", after, proved=proved)
    at = f" at the key {key}" if key and code in ("WRONGTYPE", "NOPERM") else ""
    # If the user may run one command of a script but not the next, the script stops halfway.
    halfway = code == "NOPERM" and ("user_script" in text or "user_function" in text)
    kind: type[StoreError] = OutcomeUnknown if halfway else StoreUnavailable
    if code in ("READONLY", "MASTERDOWN"):
        kind = Demoted
    return kind(
        f"{where} refused the request{at}: {why} ({code})",
        permanent=code == "WRONGTYPE" or (code in _FINAL_AT_FIRST and not proved),
        retry_after=after,
    )


def _moved(text: str, message: str, after: float | None, *, proved: bool) -> Moved:
    found = re.match(r"(MOVED|ASK) \d+ (\S*:\d+)", text)
    return Moved(
        message,
        address=found[2] if found else "",
        ask=text.startswith("ASK"),
        permanent=text.startswith("MOVED") and not proved,
        retry_after=after,
    )


def _code(text: str) -> str:
    code = text.split(" ", 1)[0]
    if code == "ERR":
        for start, name in _ERR.items():
            if text.startswith(start):
                return name
    if code == "ERR" and "user_script" in text:
        # Before Redis 7, the error of a script has the code after other words.
        return next((word for word in _REFUSED if f" {word} " in text), code)
    return code


def restart_error(
    where: str, *, promoted: bool, age: float, left: float, apart: float = 0.0
) -> StoreUnavailable:
    """The exception for a server that may have forgotten leases which holders still believe in.

    `apart`: see restart_words.
    """
    what = "was promoted" if promoted else "started, is new, or lost its data"
    return StoreUnavailable(restart_words(where, what, age, left, apart=apart), retry_after=left)
