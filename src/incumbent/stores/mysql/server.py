"""The server behind a connection: is it fit, and which incarnation of the data does it serve?

The marker is one row. It names the server that grants leases (host, port, server_id), and it goes
where the data go: to replicas, into backups. So if another server answers than the marker names,
the newest grants may be missing, and a new incarnation begins. The same if the tables were made
after the marker was written, as when a dump is loaded: their time of creation says it. A marker
that is missing (new tables, or an operator removed it) counts likewise.

A connection repeats this handshake after some seconds, before its next request.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.stores.mysql.errors import READ_ONLY
from incumbent.stores.mysql.statements import BEGIN, FORMAT, HANDSHAKE
from incumbent.stores.mysql.wire import Facts, MysqlWire

_NOT_INNODB: Final = (
    "its tables incumbent_* are not all InnoDB's, and without transactions half of a write may be"
    " lost: ALTER TABLE ... ENGINE=InnoDB"
)
_NOT_COMMITTED: Final = "autocommit stays off (a proxy?), so what is answered is not written"
_OTHER_INSTANTS: Final = (
    "binlog_format=STATEMENT gives replicas other instants: set it to MIXED or ROW"
)
_STANDS_STILL: Final = "its clock stands still during a statement: start it without sysdate-is-now"
_OTHER_FORMAT: Final = (
    f"its tables have format {{}}, and this version of incumbent speaks format {FORMAT}:"
    " stop the instances of the other version, or use another database"
)
TRIES: Final = 3
"""How often a server is asked that is another one each time."""
SPLIT: Final = (
    "what it reads is not what it writes, as when a proxy sends both to different servers: name the"
    " primary itself"
)


def handshake(wire: MysqlWire, where: str, until: float) -> None:
    """Find out the server's facts. Raises StoreUnavailable if it is not fit to grant leases."""
    for _ in range(TRIES):
        *_, state, tables, marker = wire.ask(HANDSHAKE, until, in_doubt=False)
        # After the answer: so `ahead` is the least by which its clock can be ahead of ours.
        after = clock.now()
        ((began, _, now, here, autocommit, packet, logged),) = state.rows
        ((unsafe, made),) = tables.rows
        made = str(made)
        _check(where, READ_ONLY, bad=not here.endswith(" 1"), retry_after=1.0)
        _check(where, _NOT_INNODB, bad=unsafe != 0)
        _check(where, _NOT_COMMITTED, bad=not autocommit)
        _check(where, _OTHER_INSTANTS, bad=logged == "STATEMENT")
        _check(where, _STANDS_STILL, bad=now - began < 1000)
        known = marker.rows[0] if marker.rows else (FORMAT, "", "", "")
        _check(where, _OTHER_FORMAT.format(known[0]), bad=known[0] != FORMAT)
        if known[2:4] == (here, made):
            (_, id_, *_, born, longest, floor), ahead = known, now - int(after * 1e6)
            wire.facts = Facts(id_, here, born, floor, ahead, packet)
            wire.looked, wire.longest = after, longest
            return
        # Begin an incarnation, and read again: another client may have been first.
        mine = token_hex(16)
        wire.ask(wire.quoted(BEGIN, mine, made, known[1], made, mine), until, in_doubt=True)
    _check(where, SPLIT, bad=True)


def _check(where: str, why: str, *, bad: bool, retry_after: float | None = None) -> None:
    if bad:
        permanent = retry_after is None
        raise StoreUnavailable(f"{where}: {why}", permanent=permanent, retry_after=retry_after)
