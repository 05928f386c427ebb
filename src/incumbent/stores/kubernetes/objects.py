"""What stands in a Lease object, and what other electors mean by it. Pure.

The record of a name is one annotation; `spec` is written as client-go's leader election writes it
(k8s.io/client-go, tools/leaderelection), so that controllers in Go and ours exclude each other:

    metadata:  labels       incumbent/namespace: the digest of our namespace
               annotations  incumbent/key: NAMESPACE/NAME
                            incumbent/record: 1 CRC {at, spec, record, beside, ...}
    spec:      holderIdentity, leaseDurationSeconds, acquireTime, renewTime, leaseTransitions

The record has its own clock. `at` is the instant at which a version was written; whoever reads it
adds the time for which it has seen this version stand. So no lease ends early, whatever the wall
clocks say. What lasts for hours (slots, closings) also ends by the wall clock of the API servers,
less SKEW: else it would end only while somebody looks.

The annotation says how `spec` was written with it. If it is another now, somebody else wrote:

    more transitions      another elector took the lease, which it may once ours has ended
    as many or fewer      edited by hand: whoever holds it may not renew, and it stays held
    no annotation         only another elector was here; an empty identity is free
"""

from __future__ import annotations

import json
import re
from binascii import crc32
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from math import ceil
from typing import Any, Final

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.rules.codec import Unreadable, encoded, encoded_entry
from incumbent.rules.record import (
    NOTHING,
    Beside,
    Grant,
    Instant,
    LeaseRecord,
    closed,
    dated,
    dated_value,
    holders,
)
from incumbent.stores.names import flat
from incumbent.stores.registers import Place, Swap, record_in, unreadable, value_in

RECORD: Final = "incumbent/record"
KEY: Final = "incumbent/key"
LABEL: Final = "incumbent/namespace"
MARKER: Final = "incumbent.marker"
"""The object that tells a namespace that was made anew, and an etcd that was restored."""
LARGEST: Final = 250_000
"""Bytes of a record with all beside it; Kubernetes allows 262,144 for the annotations together."""
SKEW: Final = 5_000_000
"""Microseconds by which the clocks of the API servers may differ."""
_BELIEVED: Final = 86_400_000_000
"""Microseconds for which another elector's lease is believed at most: a typo must not pin it."""
_SLOW: Final = 0.99
"""The clock of whoever waits may run faster than that of the holder."""
_FORMAT: Final = 1
_DNS: Final = re.compile(
    r"(?=.{1,200}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)
_OURS: Final = re.compile(r".*-[0-9a-f]{40}")
_SEALED: Final = re.compile(r"(\d{1,9}) ([0-9a-f]{8}) (.*)", re.DOTALL)
_SPEC: Final = ("holderIdentity", "leaseDurationSeconds", "renewTime", "leaseTransitions")


def object_name(key: Key) -> str:
    """The name of the object of a key: its own if it is a DNS name of the default namespace."""
    plain = _DNS.fullmatch(key.name) and not _OURS.fullmatch(key.name) and key.name != MARKER
    if plain and key.namespace == "default":
        return key.name
    readable = re.sub(r"[^a-z0-9]+", "-", flat(key).lower()).strip("-")[:60].strip("-")
    return f"{readable or 'name'}-{sha256(flat(key).encode()).hexdigest()[:40]}"


def label_of(namespace: str) -> str:
    """The label of all objects of one of our namespaces."""
    return sha256(namespace.encode()).hexdigest()[:32]


def sealed(parts: Mapping[str, Any]) -> str:
    """An annotation."""
    body = json.dumps(parts, separators=(",", ":"))
    return f"{_FORMAT} {crc32(body.encode()):08x} {body}"


def opened(text: str) -> dict[str, Any]:
    """What `sealed` was given. Raises Unreadable."""
    found = _SEALED.fullmatch(text)
    if found is None:
        raise Unreadable("is not of incumbent")
    if int(found[1]) != _FORMAT:
        raise Unreadable(f"has format {found[1]}, and this version of incumbent speaks {_FORMAT}")
    if crc32(found[3].encode()) != int(found[2], 16):
        raise Unreadable("was cut short, or edited: its checksum does not match")
    parts: dict[str, Any] = json.loads(found[3])
    return parts


def micro_time(wall: int) -> str:
    """An instant of the wall clock, in microseconds, as Kubernetes' MicroTime."""
    return datetime.fromtimestamp(wall / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def wall_of(text: object) -> int:
    """The instant of a MicroTime; 0 if it is none."""
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1e6)
    except (ValueError, OverflowError):
        return 0


# -- reading ---------------------------------------------------------------------------------------


class LeaseSight:
    """A version of an object, which this process saw `first` at that instant (of clock.now).

    It is the version of the register kit: equal if nobody has written since. `lease`: the object;
    None: there is none. `own`: this process wrote it; `seen`: when it was last known to stand.
    """

    def __init__(self, lease: dict[str, Any] | None, first: float, *, own: bool = False) -> None:
        meta = (lease or {}).get("metadata", {})
        self.lease, self.first, self.own, self.seen = lease, first, own, first
        self.id = str(meta.get("uid", "")), str(meta.get("resourceVersion", ""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaseSight) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __bool__(self) -> bool:
        return self.lease is not None

    def now(self, clock: float) -> Instant:
        """The instant of the record's clock, or an earlier one."""
        return self.at + int(max(0.0, clock - self.first) * _SLOW * 1e6)

    @property
    def revision(self) -> int:
        """The revision of the store that wrote it."""
        return revision_of(self.id[1])

    @cached_property
    def spec(self) -> dict[str, Any]:
        """What other electors read."""
        return {**((self.lease or {}).get("spec") or {})}

    @cached_property
    def annotations(self) -> dict[str, str]:
        return {**((self.lease or {}).get("metadata", {}).get("annotations") or {})}

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The annotation. Raises Unreadable."""
        return opened(self.annotations[RECORD]) if RECORD in self.annotations else {}

    @cached_property
    def at(self) -> Instant:
        """When it was written, by the record's clock; of what cannot be read, 0."""
        try:
            return int(self.parts.get("at", 0))
        except Unreadable:
            return 0

    @cached_property
    def found(self) -> list[Any]:
        """What other electors go by."""
        holder, seconds, renewed, transitions = (self.spec.get(name) for name in _SPEC)
        return [holder or "", seconds, renewed, transitions or 0]

    @property
    def wrote(self) -> list[Any]:
        """What we wrote there with the record."""
        wrote: list[Any] = self.parts.get("spec", ["", None, None, 0])
        return wrote

    @property
    def foreign(self) -> bool:
        """Whether somebody else has written there since."""
        return self.found != self.wrote

    @property
    def came(self) -> Instant:
        """When what another elector wrote was seen first, by the record's clock."""
        came, found = self.parts.get("foreign", (self.at, self.found))
        return int(came) if found == self.found else self.at

    def looks_dead(self, wall: int) -> bool:
        """Whether its holder should have renewed it by the wall clock, which is only a hint."""
        renewed = wall_of(self.spec.get("renewTime"))
        passed = wall - renewed
        return passed > lasting(self.spec) + SKEW or passed < -SKEW


def revision_of(text: str) -> int:
    """A resourceVersion as a number, which grows with every write; 0 if it is none."""
    return int(text) if text.isdecimal() else 0


def lasting(spec: Mapping[str, Any]) -> int:
    """Microseconds for which a lease that another elector wrote is believed."""
    seconds = spec.get("leaseDurationSeconds")
    believed = int(seconds * 1e6) if isinstance(seconds, int | float) else 0
    return min(max(believed, 1_000_000), _BELIEVED)


def record_of(sight: LeaseSight, key: Key, wall: int, now: Instant, where: str) -> LeaseRecord:
    """The record in an object, as it is `now`. Raises StoreUnavailable: nobody is granted it."""
    _refuse_strange(sight, key, where)
    record = _as_written(sight, key, where)
    closing = record.closing
    if closing is not None:
        until = min(closing.until, now + max(0, sight.parts.get("closed", 0) + SKEW - wall))
        record = record._replace(closing=closing._replace(until=until))
    return _beside_others(sight, record)


def _as_written(sight: LeaseSight, key: Key, where: str) -> LeaseRecord:
    try:
        text = sight.parts.get("record")
        return NOTHING if text is None else record_in(text.encode(), key, where, sight.at)
    except (Unreadable, AttributeError) as error:
        why = error if isinstance(error, Unreadable) else Unreadable(f"makes no sense: {error}")
        raise unreadable(f"the record of {flat(key)}", where, why) from error


def _beside_others(sight: LeaseSight, record: LeaseRecord) -> LeaseRecord:
    """The record, with what was written to `spec` since by others."""
    if not sight.foreign:
        return record
    holder, _, _, transitions = sight.found
    grants: tuple[Grant, ...] = ()
    # Another elector would have counted up: as it did not, our holders may still believe.
    if transitions <= sight.wrote[3]:
        grants = tuple(
            it._replace(claim=f"edited {it.claim}", permits=None) for it in record.grants
        )
    if holder:
        us = lasting(sight.spec)
        other = Grant(f"foreign {holder}", holder, 0, us, sight.came, sight.came + us)
        grants = (*grants, other)
    return record._replace(grants=grants, changes=record.changes + (1 if holder else 2))


def _refuse_strange(sight: LeaseSight, key: Key, where: str) -> None:
    meta = (sight.lease or {}).get("metadata", {})
    mine, why = sight.annotations.get(KEY), ""
    if sight.spec.get("strategy") or sight.spec.get("preferredHolder"):
        why = "has a strategy: Kubernetes' coordinated leader election decides about it"
    elif meta.get("ownerReferences"):
        owner = meta["ownerReferences"][0]
        why = f"is owned by {owner.get('kind')} {owner.get('name')}, and goes with it"
    elif meta.get("deletionTimestamp"):
        why = "is being deleted"
    elif mine not in (None, flat(key)):
        why = f"is that of {mine}"
    if why:
        raise StoreUnavailable(
            f"{where}: the Lease {object_name(key)} {why}. Nobody is granted {flat(key)}: use"
            " another name or namespace",
            permanent=True,
        )


def beside_of(
    sight: LeaseSight, key: Key, wall: int, now: Instant, where: str
) -> dict[Place, Beside]:
    """The values beside the record. Raises StoreUnavailable."""
    found = dict[Place, Beside]()
    for kind, name, text, until in sight.parts.get("beside", ()):
        value = value_in(text.encode(), key, (kind, name), where, sight.at)
        if isinstance(value, Grant):
            left = max(0, until + SKEW - wall)
            value = value._replace(expires=min(value.expires, now + left))
        found[kind, name] = value
    return found


# -- writing ---------------------------------------------------------------------------------------


def lease_with(swap: Swap, namespace: str, wall: int, now: Instant) -> dict[str, Any] | StoreError:
    """The object with what is swapped in; an error if it is too large."""
    key, sight, before = swap.wanted.key, swap.seen.version, swap.seen.record
    record, spec, wrote = dated(swap.record, now), dict(sight.spec), sight.wrote
    parts: dict[str, Any] = {"at": now}
    if (before.grants, before.closing) != (swap.record.grants, swap.record.closing) or not spec:
        spec = _spec(record, sight, wall, now, taken=record.granted > before.granted)
        wrote = [spec[name] for name in _SPEC]
    elif sight.foreign:
        # What another elector wrote goes on to count from when it was seen first.
        old = _as_written(sight, key, "")
        changes = record.changes - before.changes + old.changes
        record = record._replace(grants=old.grants, changes=changes)
        parts["foreign"] = sight.came, sight.found
    closing = record.closing
    if closing is not None:
        # The end of a closing that stands already is not counted anew with each write.
        same = before.closing is not None and before.closing.token == closing.token
        parts["closed"] = sight.parts["closed"] if same else wall + closing.until - now
    parts |= {"spec": wrote, "record": encoded(record).decode(), "beside": _beside(swap, wall, now)}
    text = sealed(parts)
    if len(text) > LARGEST:
        return StoreUnavailable(
            f"{flat(key)} would need {len(text):,} bytes with its fields and used slots, and a"
            f" Lease has room for {LARGEST:,}; nothing was changed. Remove fields, or keep large"
            " values elsewhere",
            permanent=True,
        )
    meta = {**((sight.lease or {}).get("metadata") or {})}
    meta.pop("managedFields", None)
    meta |= {"name": object_name(key), "namespace": namespace}
    meta["labels"] = {**(meta.get("labels") or {}), LABEL: label_of(key.namespace)}
    meta["annotations"] = {**sight.annotations, KEY: flat(key), RECORD: text}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def _spec(
    record: LeaseRecord, sight: LeaseSight, wall: int, now: Instant, *, taken: bool
) -> dict[str, Any]:
    """What other electors shall read: of those who share a lease, the newest."""
    there, closing, old = holders(record, now), closed(record, now), sight.spec
    newest = max(there, key=lambda it: it.token, default=None)
    holder = newest.holder if newest else closing.holder if closing else ""
    ends = max([it.expires for it in there] + [closing.until if closing else now])
    same = not taken and holder == old.get("holderIdentity") and old.get("acquireTime")
    return {
        **old,
        "holderIdentity": holder,
        "leaseDurationSeconds": max(1, ceil((ends - now) / 1e6)),
        "acquireTime": old["acquireTime"] if same else micro_time(wall),
        "renewTime": micro_time(wall),
        "leaseTransitions": (sight.found[3] + taken) % 2**31,
    }


def _beside(swap: Swap, wall: int, now: Instant) -> list[list[Any]]:
    """The values beside the record that still matter, with when a slot ends by the wall clock."""
    kept = {(it[0], it[1]): it for it in swap.seen.version.parts.get("beside", ())}
    for kind, name, value in swap.entries:
        kept.pop((kind, name), None)
        if value is not None:
            known = dated_value(value, now)
            until = wall + known.expires - now if isinstance(known, Grant) else 0
            kept[kind, name] = [kind, name, encoded_entry(known).decode(), until]
    return [it for it in kept.values() if it[0] != "slot" or it[3] + SKEW > wall]
