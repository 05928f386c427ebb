"""The failures of a server, as exceptions of the store contract. Pure.

The rule of the table: every request is one statement in a transaction of its own, so that an ERROR
means that it was rolled back (https://www.postgresql.org/docs/15/protocol-flow.html).
A FATAL error ends the session, perhaps after the commit: the outcome is unknown.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.rules import codec

RECORD_FORMAT: Final = codec.RECORD_FORMAT
"""The schema's format: a client refuses a schema of another one."""
OLDEST: Final = 130_000
"""The oldest version of a server, as libpq writes versions."""


class PostgresErrorReply(Exception):
    """The server replied with an error, and rolled back."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class _StateMeaning(NamedTuple):
    why: str
    final: bool = False
    retry_after: float | None = None


_FIX: Final = "run `incumbent doctor --fix` as a role that may create it, or apply schema.sql"
_MISSING: Final = _StateMeaning(
    f"its schema incumbent is missing or incomplete: {_FIX}", final=True
)
_READ_ONLY: Final = _StateMeaning(
    "it is read-only (a standby, or default_transaction_read_only): use the address of the"
    " primary, or name all hosts",
    retry_after=1.0,
)
_FULL: Final = _StateMeaning("it has no connection left for us (max_connections)", retry_after=0.5)

_ANSWERS: Final[dict[str, _StateMeaning]] = {
    "25006": _READ_ONLY,
    "3F000": _MISSING,
    "42883": _MISSING,
    "42P01": _MISSING,
    "42703": _MISSING,
    "42501": _StateMeaning(
        "this role lacks rights: GRANT USAGE ON SCHEMA incumbent TO it, and GRANT EXECUTE ON ALL"
        " FUNCTIONS IN SCHEMA incumbent TO it",
        final=True,
    ),
    "40001": _StateMeaning("the transactions of two clients conflicted", retry_after=0.05),
    "40P01": _StateMeaning("it broke a deadlock of two clients", retry_after=0.05),
    "55P03": _StateMeaning("somebody else keeps the lease's row locked", retry_after=0.5),
    "57014": _StateMeaning(
        "it cancelled the statement and rolled it back: statement_timeout, or an operator",
        retry_after=0.5,
    ),
    "53300": _FULL,
    "53100": _StateMeaning("its disk is full: free some space", retry_after=1.0),
    "53200": _StateMeaning("it is out of memory", retry_after=1.0),
    "22021": _StateMeaning(
        "its encoding has no such characters: use a database in UTF8", final=True
    ),
    "22P05": _StateMeaning(
        "its encoding has no such characters: use a database in UTF8", final=True
    ),
}

# libpq gives no code for a connection that was refused, only the server's text.
_REFUSALS: Final[tuple[tuple[str, _StateMeaning], ...]] = (
    ("password authentication failed", _StateMeaning("check the user name and the password", True)),
    ("no password supplied", _StateMeaning("give a password", True)),
    ("authentication failed", _StateMeaning("check the user name and the password", True)),
    ("no pg_hba.conf entry", _StateMeaning("its pg_hba.conf must admit this user from here", True)),
    (
        "no such user",
        _StateMeaning("name another user, or make this one known to the pooler", True),
    ),
    (
        "no such database",
        _StateMeaning("name another database, or make it known to the pooler", True),
    ),
    ("role .* does not exist", _StateMeaning("create that role, or name another", True)),
    ("database .* does not exist", _StateMeaning("create that database, or name another", True)),
    (
        "certificate verify failed",
        _StateMeaning("name the authority: sslrootcert=/path/ca.pem", True),
    ),
    ("server certificate for", _StateMeaning("the certificate names another host", True)),
    ("root certificate file", _StateMeaning("name the authority: sslrootcert=/path/ca.pem", True)),
    ("does not support SSL", _StateMeaning("its TLS is off (ssl = on in postgresql.conf)", True)),
    ("session is read-only", _READ_ONLY),
    ("server is in hot standby", _READ_ONLY),
    ("too many clients", _FULL),
    ("remaining connection slots", _FULL),
    ("the database system is", _StateMeaning("wait until it has started", retry_after=0.5)),
)


def answered_error(error: PostgresErrorReply, where: str, *, served: bool = True) -> StoreError:
    """The exception for an error that the server replied.

    `served`: this server has served us before, so that even missing rights may be temporary.
    """
    if error.code.startswith("XX"):
        return OutcomeUnknown(f"{where} failed inside: {error} ({error.code})")
    why, final, after = _ANSWERS.get(error.code, _StateMeaning("look at its log"))
    return StoreUnavailable(
        f"{where} refused the request: {error} ({error.code}); {why}",
        permanent=final and not served,
        retry_after=after,
    )


def connect_error(words: str, where: str, *, final: bool = False, served: bool) -> StoreUnavailable:
    """The exception for a failure to connect to any of the hosts."""
    meaning = next((each for pattern, each in _REFUSALS if re.search(pattern, words)), None)
    more = f"; {meaning.why}" if meaning else ""
    return StoreUnavailable(
        f"{where} cannot be reached: {words or 'no connection in time'}{more}",
        permanent=(final or bool(meaning and meaning.final)) and not served,
        retry_after=meaning.retry_after if meaning else None,
    )


def check_server(number: int, where: str, *, served: bool) -> None:
    """Raise StoreUnavailable for a server that is too old; `number` is libpq's (150004: 15.4)."""
    if number < OLDEST:
        raise StoreUnavailable(
            f"{where} is PostgreSQL {number // 10_000}: version 13 or later is needed",
            permanent=not served,
        )


def check_schema(hello: dict[str, Any], where: str, *, served: bool) -> None:
    """Raise StoreUnavailable for a schema of another format."""
    if (found := hello.get("format")) != RECORD_FORMAT:
        raise StoreUnavailable(
            f"{where}: the schema incumbent has format {found}, and this version of incumbent"
            f" speaks {RECORD_FORMAT}: stop the instances of the other version first, then drop the"
            " schema and run `incumbent doctor --fix`; or use another database",
            permanent=not served,
        )
