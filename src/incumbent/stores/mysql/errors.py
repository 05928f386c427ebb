"""The errors of a server, as exceptions of the store contract. Pure.

A statement that the server answers with an error had no effect, and neither had its transaction,
once the connection is closed. But some errors also come after a commit that went through on this
server, and an error that is not listed here may be one of them: then a write is in doubt.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable


class ServerError(Exception):
    """The server replied with an error. `in_doubt`: perhaps something was changed all the same."""

    def __init__(self, code: int, text: str, *, in_doubt: bool) -> None:
        super().__init__(text)
        self.code, self.in_doubt = code, in_doubt


class _ErrorMeaning(NamedTuple):
    why: str
    final: bool = False
    retry_after: float | None = None


MAKE_TABLES: Final = "run `incumbent doctor --fix` as a user who may create tables there"
READ_ONLY: Final = "it is read-only, as a replica is: name the primary, or all hosts"
_READ_ONLY: Final = _ErrorMeaning(READ_ONLY, retry_after=1.0)
_LOGIN: Final = _ErrorMeaning(
    "check the user name, the password, and from where the user may come", True
)
_RIGHTS: Final = _ErrorMeaning(
    "GRANT SELECT, INSERT, UPDATE, DELETE on incumbent_lease, incumbent_beside and incumbent_marker"
    " to this user",
    final=True,
)
_TABLES: Final = _ErrorMeaning(MAKE_TABLES, final=True)
_FULL: Final = _ErrorMeaning("it has no connection left for us (max_connections)", retry_after=0.5)
_SIZE: Final = _ErrorMeaning("that is larger than the store allows", final=True)
_STRANGE: Final = _ErrorMeaning("it is no MariaDB or MySQL that this version knows", final=True)
_BUSY: Final = _ErrorMeaning("another client was quicker", retry_after=0.05)

_ANSWERS: Final[dict[int, _ErrorMeaning]] = {
    **dict.fromkeys((1290, 1792, 1836), _READ_ONLY),
    **dict.fromkeys((1045, 1130, 1251, 1698, 3118, 4151), _LOGIN),
    **dict.fromkeys((1044, 1142, 1143, 1227, 1370), _RIGHTS),
    **dict.fromkeys((1054, 1146), _TABLES),
    **dict.fromkeys((1040, 1129, 1203, 1226), _FULL),
    **dict.fromkeys((1118, 1153, 1406), _SIZE),
    **dict.fromkeys((1064, 1193, 1235, 1305), _STRANGE),
    1049: _ErrorMeaning("CREATE DATABASE first, or name another one", final=True),
    # A deadlock, and on Galera a commit that another node's write came before.
    1213: _BUSY,
    1020: _BUSY,
    1205: _ErrorMeaning("somebody else keeps the row or the table locked", retry_after=0.5),
    1047: _ErrorMeaning(
        "this node is not part of its cluster's majority (Galera)", retry_after=1.0
    ),
    1114: _ErrorMeaning("its disk is full: free some space", retry_after=1.0),
    1665: _ErrorMeaning("set binlog_format to MIXED or ROW", final=True),
}


def answered(error: ServerError, where: str, about: str, *, served: bool) -> StoreError:
    """The exception for a server's error; `about`: the names of the request, or nothing."""
    said = f"{where} refused the request{about and f' about {about}'}: {error} ({error.code})"
    meaning = _ANSWERS.get(error.code)
    if meaning is None and error.in_doubt:
        return OutcomeUnknown(f"{said}; perhaps it did what was asked")
    why, final, after = meaning or _ErrorMeaning("look at its log")
    return StoreUnavailable(f"{said}; {why}", permanent=final and not served, retry_after=after)
