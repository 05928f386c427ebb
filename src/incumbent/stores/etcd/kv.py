"""Keys in etcd's flat, ordered key space, their values, requests and replies. Pure.

    PREFIX/NAMESPACE/NAME/held        the lease; a foreign key under PREFIX/NAMESPACE/NAME/, too
    PREFIX/NAMESPACE/NAME/shared/...  PERMITS/SEAT: one of several leases on the name at once
    PREFIX/NAMESPACE/NAME/ticket      the place of our waiters among foreign ones, see `foreign`
    PREFIX/NAMESPACE!s/NAME/...       the switches "pause" and "resign", and the "closing"
    PREFIX/NAMESPACE!r/NAME/...       f/FIELD  h/RING/PLACE  t/SLOT/CLAIM  w/HOLDER
    PREFIX/NAMESPACE!x/NAME/CLAIM     a claim that was given up: a late take of it is refused
    PREFIX/NAMESPACE!l/NAME/CLIENT/N  a waiter in line; its creation determines the order
    PREFIX!born                       the marker, which identifies the cluster's incarnation
    PREFIX!born-ttl                   the longest ttl that was ever asked for, above the default

A value that is written again and again has one key: until the next compaction, a read of a range
visits every key that ever was in the range, even deleted keys.

A slash within a name becomes %2F, and neither names nor namespaces contain "!" or "%": so no key of
one name is under another name.

A *program* is a generator: it yields requests, receives their replies, and returns an outcome. An
error of a request is raised where the program waits for its reply. The gateway takes keys and
values in base64, and numbers as strings of digits.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import b2a_base64
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from incumbent.errors import StoreUnavailable
from incumbent.model import Candidate, Field, Holding, Key, Past, Record
from incumbent.rules.notices import PAUSE, RESIGN
from incumbent.rules.record import HISTORY_KEPT
from incumbent.rules.taking import CANDIDATES_KEPT
from incumbent.stores.url import Endpoint

if TYPE_CHECKING:
    from incumbent.stores.etcd.foreign import Contenders

T = TypeVar("T")
_quoted: Final = json.encoder.encode_basestring_ascii
Reply: TypeAlias = dict[str, Any]
AsOf: TypeAlias = tuple[str, str, int, int]

RECORD_FORMAT: Final = 1
"""The format of the marker and of a lease's value."""
_SHOWN: Final = 200
BATCH: Final = 116
"""Leases compared in one transaction; etcd takes 128 comparisons (--max-txn-ops)."""
NESTED_MOST: Final = 50
"""Most transactions nested in one transaction."""
REPEATED: Final = " repeated"
"""Name in a Reply: whether an earlier try of its request was perhaps carried out."""
TXN: Final = "/v3/kv/txn"
LINEARIZABLE: Final = frozenset({TXN, "/v3/kv/range"})
COUNT: Final = ',"count_only":true'
NEWEST: Final = ',"sort_order":"DESCEND","sort_target":"MOD","limit":"1","keys_only":true'


class GatewayRequest(NamedTuple):
    """One request; without a body it is a GET, whose reply is a Reading.

    `repeatable`: it may be sent again although it was perhaps carried out. `marker_value`: that of
    the marker that must still be known when the reply comes. `endpoint`: the only member to ask.
    """

    path: str
    body: bytes = b"{}"
    repeatable: bool = True
    marker_value: str = ""
    endpoint: Endpoint | None = None


EtcdProgram: TypeAlias = Generator[GatewayRequest, Any, T]
"""The type of a program (see the module)."""


# -- keys -----------------------------------------------------------------------------------------


def _part(text: str) -> str:
    """One part of a key, without a slash."""
    return text if text.isalnum() and text.isascii() else quote(text, safe="")


class Names:
    """The keys of one lease."""

    __slots__ = (
        *("_given_up", "candidates", "closing", "contenders", "held", "line"),
        *("record", "sharers", "switches", "ticket"),
    )

    def __init__(self, prefix: str, key: Key) -> None:
        base, name = f"{prefix}/{key.namespace}", quote(key.name, safe=":@")
        self.contenders = f"{base}/{name}/"
        """The beginning of the keys of all that hold the name or want it, see `foreign`."""
        self.held = f"{base}/{name}/held"
        self.sharers = f"{base}/{name}/shared/"
        self.ticket = f"{base}/{name}/ticket"
        self.switches = f"{base}!s/{name}/"
        self.closing = f"{base}!s/{name}/closing"
        self.record = f"{base}!r/{name}/"
        self.candidates = f"{base}!r/{name}/w"
        """The beginning of all candidates' keys; a new candidate is no change."""
        self.line = f"{base}!l/{name}/"
        self._given_up = f"{base}!x/{name}/"

    def field(self, field: str) -> str:
        if field in (PAUSE, RESIGN):
            return self.switches + field
        return f"{self.record}f/{_part(field)}"

    def seats(self, permits: int) -> str:
        """The beginning of the keys of those who share the name with so many permits."""
        return f"{self.sharers}{permits}/"

    def given_up(self, claim: str) -> str:
        """The key that marks a claim as given up."""
        return self._given_up + claim

    def past(self, place: str) -> str:
        """The key of an entry in the history."""
        return f"{self.record}h/{place}"

    def slot(self, slot: str, claim: str = "") -> str:
        """The key of a slot that `claim` took; without a claim, the start of the slot's keys."""
        return f"{self.record}t/{_part(slot)}/{_part(claim)}"

    def candidate(self, holder: str) -> str:
        return f"{self.candidates}/{_part(holder)}"


names_of = lru_cache(maxsize=16_384)(Names)
"""The cached Names of a prefix and key: quoting costs more than all the rest."""


def scan_ranges(prefix: str, namespace: str, name: str) -> list[tuple[str, str]]:
    """The ranges of all keys of the names that begin with `name`."""
    start = quote(name, safe=":@")
    areas = (f"{prefix}/{namespace}{kind}/" for kind in ("", "!s", "!r"))
    return [(area + start, after(area + start)) for area in areas]


# -- replies --------------------------------------------------------------------------------------


def revision_of(reply: Reply) -> int:
    """The revision at which the cluster answered."""
    return int(reply["header"].get("revision", 0))


def raft_term_of(reply: Reply) -> str:
    """The raft term in which the cluster answered."""
    return str(reply["header"].get("raft_term", ""))


def as_of(reply: Reply, dialled: int = 0) -> AsOf | None:
    """The state of the cluster that a reply is of; None if the reply does not say.

    As long as the state is the same, so is every key. `dialled`: the number of connections made
    until then; a new connection may lead to another state.
    """
    revision = revision_of(reply)
    cluster = str(reply["header"].get("cluster_id", ""))
    return (cluster, raft_term_of(reply), revision, dialled) if revision else None


# -- values ---------------------------------------------------------------------------------------


def b64(text: str) -> str:
    """The text in base64, which the gateway's JSON has for bytes."""
    return b2a_base64(text.encode(), newline=False).decode()


_key = lru_cache(maxsize=16_384)(b64)


def after(prefix: str) -> str:
    """The end of the range of all keys that begin with `prefix`, which ends in ASCII."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class KeyValue(NamedTuple):
    """One key as the gateway returned it."""

    key: str
    value: bytes
    created: int
    modified: int
    etcd_lease: str

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a value that incumbent wrote; none for another value (no JSON object)."""
        try:
            found = json.loads(self.value)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def claim(self) -> str:
        """The claim that holds the name by this key; empty for a foreign key."""
        fields = self.fields
        return str(fields.get("claim") or fields.get("with_ticket") or "")

    @property
    def ticket(self) -> int:
        """The ticket with which that claim was granted, see `foreign`; 0: without."""
        return int(number_in(self.fields.get("ticket")))

    @property
    def permits(self) -> int | None:
        """How many may share the name with that claim; None: it holds it alone."""
        found = self.fields.get("permits")
        return found if isinstance(found, int) else None

    @property
    def value64(self) -> str:
        """The value in base64."""
        return b64encode(self.value).decode()


def count_of(response: Mapping[str, Any]) -> int:
    """The number of keys in a range, even if the request was limited to a few."""
    # The gateway leaves out what is zero.
    return int(response["response_range"].get("count", 0))


def entries_in(response: Mapping[str, Any]) -> list[KeyValue]:
    """The keys in the response to a range, such as `responses[i]`."""
    kvs = response.get("response_range", response).get("kvs", ())
    return [
        KeyValue(
            # A foreign key may have any bytes; it must not hide the keys beside it.
            b64decode(kv["key"]).decode(errors="replace"),
            b64decode(kv.get("value", "")),
            int(kv["create_revision"]),
            int(kv["mod_revision"]),
            kv.get("lease", "0"),
        )
        for kv in kvs
    ]


def packed(**fields: str | float) -> str:
    """A value as JSON, in base64. The JSON is put together by hand because that is quicker."""
    inside = ",".join([
        f'"{name}":{_quoted(value) if isinstance(value, str) else repr(value)}'
        for name, value in fields.items()
    ])  # fmt: skip
    return b64(f"{{{inside}}}")


# -- comparisons ----------------------------------------------------------------------------------
#
# A comparison of a range holds if it holds for every key there. For a range without keys, etcd
# compares a key of revision 0; a comparison of values fails then (server/etcdserver/txn,
# applyCompare). So one comparison of CREATE says that a range is empty, or that all is younger.


def absent(key: str, end: str = "") -> str:
    """The comparison: the key does not exist; or no key of the range that begins with it."""
    return (
        f'{{"key":"{_key(key)}","range_end":"{_key(end)}","target":"CREATE","create_revision":"0"}}'
    )


def free(prefix: str) -> str:
    """The comparison: no key begins with `prefix`."""
    return absent(prefix, after(prefix))


def none_before(prefix: str, revision: int) -> str:
    """The comparison: keys begin with `prefix`, and all were created at `revision` or later."""
    start, end = _key(prefix), _key(after(prefix))
    compare = f'"target":"CREATE","result":"GREATER","create_revision":"{revision - 1}"'
    return f'{{"key":"{start}","range_end":"{end}",{compare}}}'


def created(key: str, revision: int) -> str:
    """The comparison: the key was created at that revision."""
    return f'{{"key":"{_key(key)}","target":"CREATE","create_revision":"{revision}"}}'


def exists(key: str) -> str:
    """The comparison: the key exists."""
    compare = '"target":"CREATE","result":"GREATER","create_revision":"0"'
    return f'{{"key":"{_key(key)}",{compare}}}'


def modified(key: str, revision: int) -> str:
    """The comparison: the key was last written at that revision; 0: it does not exist."""
    return f'{{"key":"{_key(key)}","target":"MOD","mod_revision":"{revision}"}}'


def attached(key: str, etcd_lease: str) -> str:
    """The comparison: the key is attached to that etcd lease."""
    return f'{{"key":"{_key(key)}","target":"LEASE","lease":"{etcd_lease}"}}'


def has_value(key: str, value: str) -> str:
    """The comparison: the key has that value (base64)."""
    return f'{{"key":"{_key(key)}","target":"VALUE","value":"{value}"}}'


# -- operations -----------------------------------------------------------------------------------


def put(key: str, value: str, etcd_lease: str = "0") -> str:
    """Write `value` (base64), attached to an etcd lease."""
    return f'{{"request_put":{{"key":"{_key(key)}","value":"{value}","lease":"{etcd_lease}"}}}}'


def rewrite(key: str, value: str) -> str:
    """Write `value` (base64) to a key that exists, and stays on its etcd lease."""
    return f'{{"request_put":{{"key":"{_key(key)}","value":"{value}","ignore_lease":true}}}}'


def delete(key: str) -> str:
    return f'{{"request_delete_range":{{"key":"{_key(key)}","range_end":""}}}}'


def read(key: str, end: str = "", more: str = "") -> str:
    """Read a key, or a range; `more` holds further options, each with a comma before it."""
    return f'{{"request_range":{{"key":"{_key(key)}","range_end":"{_key(end)}"{more}}}}}'


def read_all(prefix: str, more: str = "") -> str:
    """Read all keys that begin with `prefix`."""
    return read(prefix, after(prefix), more)


def nested(compare: Sequence[str], success: Sequence[str], failure: Sequence[str] = ()) -> str:
    """A transaction within a transaction."""
    return f'{{"request_txn":{_transaction(compare, success, failure)}}}'


def read_ours(names: Names) -> str:
    """Read the keys of our claims that hold the name; `entry_of` finds one of them."""
    return read(names.held, after(names.sharers))


def _transaction(
    compare: Sequence[str], success: Sequence[str], failure: Sequence[str] = ()
) -> str:
    return (
        f'{{"compare":[{",".join(compare)}],"success":[{",".join(success)}],'
        f'"failure":[{",".join(failure)}]}}'
    )


# -- requests -------------------------------------------------------------------------------------


def transaction(
    success: Sequence[str],
    failure: Sequence[str] = (),
    *,
    where: Sequence[str] = (),
    repeatable: bool = True,
    marker_value: str = "",
    endpoint: Endpoint | None = None,
) -> GatewayRequest:
    """Carry out `success` if all comparisons in `where` hold, else `failure`."""
    body = _transaction(where, success, failure).encode()
    return GatewayRequest(TXN, body, repeatable, marker_value, endpoint)


def lease_request(what: str, etcd_lease: str) -> GatewayRequest:
    """`keepalive`, `timetolive` or `revoke` an etcd lease."""
    return GatewayRequest(f"/v3/lease/{what}", b'{"ID":"%b"}' % etcd_lease.encode())


def watch(ranges: Sequence[tuple[str, str]], revision: int) -> GatewayRequest:
    """Open one stream for all changes in these ranges, from `revision` on."""
    body = "".join(
        f'{{"create_request":{{"key":"{_key(start)}","range_end":"{_key(end)}",'
        f'"start_revision":"{revision}","watch_id":"{index}"}}}}'
        for index, (start, end) in enumerate(ranges, 1)
    )
    return GatewayRequest("/v3/watch", body.encode())


def seconds(ttl: float) -> int:
    """The ttl of the etcd lease for a ttl: in whole seconds, rounded up."""
    # Rounded down, etcd would free the name while its holder still has a proof.
    return max(1, ceil(ttl))


# -- leases ---------------------------------------------------------------------------------------


def entry_of(claim: str, response: Mapping[str, Any]) -> KeyValue | None:
    """The lease's key as a lookup found it, if this claim has it; else None."""
    return next((it for it in entries_in(response) if it.claim == claim), None)


def number_in(value: object, default: float = 0.0) -> float:
    """The value of a field if it is a number, else the default."""
    # Another program may have written it: Python reads NaN and Infinity, which are no JSON.
    return float(value) if isinstance(value, int | float) and isfinite(value) else default


def check_format(entry: KeyValue, cure: str = "") -> dict[str, Any]:
    """The fields. Raises StoreUnavailable (permanent) if they have another format."""
    fields = entry.fields
    if fields.get("format") != RECORD_FORMAT:
        raise StoreUnavailable(
            f"{entry.key!r} has format {fields.get('format')}, and this version speaks"
            f" {RECORD_FORMAT}: instances of another version use it. Stop those first{cure}, or"
            " give this version a prefix of its own in the store's URL",
            permanent=True,
        )
    return fields


def seen_in(contenders: Sequence[KeyValue], others: Iterable[KeyValue] = (), count: int = 0) -> str:
    """The text that `wait_change` compares: the last revision of the entries, and their number.

    Without contenders, the others count. While there are some, a switch or field that is written
    shows in the watch, which begins at the revision of the asker's read. `count`: the number of
    entries, if these are only the newest.
    """
    written = [entry.modified for entry in contenders or others]
    newest, among = max(written, default=0), max(count, len(written))
    return f"{newest}+{among}" if among > 1 else str(newest or "")


def newest_seen(seen: str) -> int:
    """The last revision that `seen` names; 0 if it names none."""
    newest = seen.partition("+")[0]
    return int(newest) if newest.isdigit() else 0


def surplus_candidates(entries: Iterable[KeyValue]) -> list[str]:
    """The keys of the candidates beyond the limit: those whose time ends first."""
    # Then by the key: clients that clean up at once have to choose the same ones.
    ordered = sorted(entries, key=lambda entry: (number_in(entry.fields.get("until")), entry.key))
    return [entry.key for entry in ordered[:-CANDIDATES_KEPT]]


# -- records --------------------------------------------------------------------------------------

Kinds: TypeAlias = dict[str, list[tuple[str, KeyValue]]]
"""Entries of one name: "/contender", "/switch", "/closing", and those of its record: f, h, t, w."""


def by_name(prefix: str, namespace: str, entries: Iterable[KeyValue]) -> dict[Key, Kinds]:
    """Entries by the lease they belong to and by their kind, each with the rest of its key."""
    found: dict[Key, Kinds] = {}
    for entry in entries:
        area, _, rest = entry.key.removeprefix(f"{prefix}/{namespace}").partition("/")
        name, slash, rest = rest.partition("/")
        if not (name and slash):
            continue
        if area == "!r":
            kind, _, rest = rest.partition("/")
        elif area == "!s":
            kind = "/closing" if rest == "closing" else "/switch"
        else:
            kind = "/contender"
        kinds = found.setdefault(Key(namespace, unquote(name)), defaultdict(list))
        kinds[kind].append((unquote(rest), entry))
    return found


def record_of(
    key: Key, kinds: Kinds, found: Contenders, base: int, lives: Mapping[str, float], wall: float
) -> Record:
    """The record of a key. `lives`: the seconds left of etcd leases."""

    def left(entry: KeyValue) -> float:
        """Seconds left: by etcd if it was asked, else by the writer's wall clock."""
        if entry.etcd_lease in lives:
            return lives[entry.etcd_lease]
        fields = entry.fields
        kept = number_in(fields.get("kept"))
        # At most what was asked for: a writer whose clock is ahead would make it longer by as much.
        return min(kept, max(0.0, number_in(fields.get("until")) - wall))

    closing = next((entry for _, entry in kinds["/closing"]), None)
    candidates = [Candidate(name, left(entry)) for name, entry in kinds["w"]]
    beside = ("w", "/contender")
    changes = [entry for kind, of in kinds.items() if kind not in beside for _, entry in of]
    return Record(
        key,
        tuple(holding_of(one, base, lives, wall) for one in found.holders),
        left(closing) if closing else 0.0,
        {
            name: Field(entry.value, entry.modified)
            for name, entry in (*kinds["/switch"], *kinds["f"])
        },
        {name.rpartition("/")[0]: left(entry) for name, entry in kinds["t"]},
        _history([entry for _, entry in kinds["h"]], base),
        tuple(sorted(candidates, key=lambda candidate: candidate.holder)),
        seen_in(found.keys, changes),
        str(closing.fields.get("reserved_for", "")) if closing else "",
    )


def holding_of(entry: KeyValue, base: int, lives: Mapping[str, float], wall: float) -> Holding:
    """The holding that this key describes. Raises StoreUnavailable for another format."""
    token, left = base + entry.created, lives.get(entry.etcd_lease)
    if not entry.claim:
        # Of etcdctl or a Go program: the value may be anything, and is often empty.
        shown = entry.value.decode(errors="replace").strip()[:_SHOWN]
        return Holding(shown or entry.key[-_SHOWN:], token, left, foreign=True)
    fields = check_format(entry)
    return Holding(
        str(fields.get("holder", "")),
        token,
        left,
        number_in(fields.get("ttl")),
        # The clock of who took it may be ahead of ours.
        max(0.0, wall - number_in(fields.get("since"), wall)),
        b64decode(str(fields.get("meta", ""))),
        entry.claim,
        permits=entry.permits,
    )


def _history(entries: list[KeyValue], base: int) -> tuple[Past, ...]:
    found: dict[int, Past] = {}
    for entry in entries:
        fields = entry.fields
        ended = fields.get("ended")
        revision = entry.modified if ended is None else int(fields.get("revision", entry.created))
        if ended is None and revision in found:
            # Another process than the taker ended this holding, and wrote a second entry of it.
            continue
        holder, started = str(fields.get("holder", "")), number_in(fields.get("since"))
        found[revision] = Past(holder, base + revision, started, ended)
    return tuple(found[revision] for revision in sorted(found)[-HISTORY_KEPT:])
