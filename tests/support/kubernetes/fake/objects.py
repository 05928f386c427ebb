"""What the API server makes of the objects that it is sent: decoding, defaults and validation.

After pkg/apis/coordination/validation and k8s.io/apimachinery/pkg/api/validation: types first
(400, nothing is looked at further), then all rules together (422, each with its field).
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Final

from tests.support.kubernetes.fake.statuses import Cause, Json, Kind, bad_request

__all__ = ["LEASES", "NAMESPACES", "PODS", "decode", "faults_of"]

LEASES: Final = Kind("coordination.k8s.io", "leases", "Lease")
PODS: Final = Kind("", "pods", "Pod")
NAMESPACES: Final = Kind("", "namespaces", "Namespace", namespaced=False)

ANNOTATIONS_LIMIT: Final = 256 * 1024
_INT32: Final = 2**31
_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character"
)
_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character"
)
_PART_RULE: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character"
)
_TEXTS: Final = ("name", "generateName", "namespace", "uid", "resourceVersion", "selfLink")
_SPEC: Final[dict[str, type[Any]]] = {
    "holderIdentity": str,
    "leaseDurationSeconds": int,
    "acquireTime": datetime,
    "renewTime": datetime,
    "leaseTransitions": int,
    "strategy": str,
    "preferredHolder": str,
}


def decode(kind: Kind, body: bytes) -> Json:
    """The object in `body`, without what this kind does not have; 400 if it is of other types."""
    try:
        given = json.loads(body)
    except ValueError as error:
        raise _unreadable(kind, f"couldn't get version/kind; json parse error: {error}") from None
    if not isinstance(given, dict):
        raise _unreadable(kind, "json: cannot unmarshal into Go value of type struct")
    # Some clients leave out what the address says already.
    named = (given.get("apiVersion", kind.api_version), given.get("kind", kind.name))
    if named != (kind.api_version, kind.name):
        raise bad_request(
            f"the API version in the data ({named[0]}) does not match the expected API version "
            f"({kind.api_version})"
            if named[0] != kind.api_version
            else f'{named[1]} in version "v1" cannot be handled as a {kind.name}'
        )
    made: Json = {"kind": kind.name, "apiVersion": kind.api_version}
    made["metadata"] = _metadata(kind, given.get("metadata") or {})
    if kind is LEASES:
        return made | {"spec": _spec(kind, given.get("spec") or {})}
    return made | {part: given[part] for part in ("spec", "status") if given.get(part)}


def _unreadable(kind: Kind, why: str) -> Exception:
    return bad_request(f'{kind.name} in version "v1" cannot be handled as a {kind.name}: {why}')


def _metadata(kind: Kind, given: Any) -> Json:
    if not isinstance(given, dict):
        raise _unreadable(kind, "json: cannot unmarshal into Go struct field .metadata")
    made: Json = {name: _typed(kind, name, given[name], str) for name in _TEXTS if given.get(name)}
    for name in ("labels", "annotations"):
        pairs = given.get(name) or {}
        if not isinstance(pairs, dict):
            raise _unreadable(kind, f"json: cannot unmarshal into Go struct field {name}")
        texts = {key: _typed(kind, name, value, str) for key, value in pairs.items()}
        made |= {name: texts} if texts else {}
    for name in ("ownerReferences", "finalizers", "managedFields"):
        made |= {name: given[name]} if given.get(name) else {}
    return made


def _spec(kind: Kind, given: Any) -> Json:
    if not isinstance(given, dict):
        raise _unreadable(kind, "json: cannot unmarshal into Go struct field Lease.spec")
    # `null` is as if it were not there.
    return {
        name: _typed(kind, name, given[name], wanted)
        for name, wanted in _SPEC.items()
        if given.get(name) is not None
    }


def _typed(kind: Kind, name: str, value: Any, wanted: type) -> Any:
    if wanted is datetime:
        return _micro_time(kind, value)
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise _unreadable(
            kind,
            f"json: cannot unmarshal {json.dumps(value)} into Go struct field {name} of type "
            f"{'string' if wanted is str else 'int32'}",
        )
    if wanted is int and value not in range(-_INT32, _INT32):
        raise _unreadable(kind, f"json: cannot unmarshal number {value} into field {name} (int32)")
    return value


def _micro_time(kind: Kind, value: Any) -> str:
    """Six digits of a second, no more and no fewer; given back in UTC."""
    try:
        if not (isinstance(value, str) and _MICRO_TIME.fullmatch(value)):
            raise ValueError
        instant = datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        layout = "2006-01-02T15:04:05.000000Z07:00"
        raise _unreadable(
            kind, f'parsing time {json.dumps(value)} as "{layout}": cannot parse it'
        ) from None
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# -- rules ----------------------------------------------------------------------------------------


def faults_of(kind: Kind, made: Json) -> list[Cause]:
    """All that is wrong with an object whose types are right."""
    metadata = made["metadata"]
    found = [*_of_name(kind, metadata), *_of_labels(metadata), *_of_annotations(metadata)]
    for owner in metadata.get("ownerReferences", ()):
        for part in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(part):
                field = f"metadata.ownerReferences.{part}"
                found.append(Cause(field, f"{_quoted(owner.get(part, ''))}: must not be empty"))
    return found + (_of_spec(made["spec"]) if kind is LEASES else [])


def _quoted(value: Any) -> str:
    return f"Invalid value: {json.dumps(value)}"


def _of_name(kind: Kind, metadata: Json) -> list[Cause]:
    name = metadata.get("name", "")
    if not name:
        return [
            Cause(
                "metadata.name",
                "Required value: name or generateName is required",
                "FieldValueRequired",
            )
        ]
    longest, form, rule = 253, _SUBDOMAIN, _SUBDOMAIN_RULE
    if kind is NAMESPACES:
        longest, form, rule = (63, _LABEL, _LABEL_RULE)
    said = []
    if len(name.encode()) > longest:
        said.append(f"must be no more than {longest} bytes")
    if not form.fullmatch(name):
        said.append(rule)
    return [Cause("metadata.name", f"{_quoted(name)}: {why}") for why in said]


def _of_labels(metadata: Json) -> list[Cause]:
    found = []
    for key, value in metadata.get("labels", {}).items():
        found += _of_key("metadata.labels", key)
        if len(value.encode()) > 63:
            found.append(
                Cause("metadata.labels", f"{_quoted(value)}: must be no more than 63 bytes")
            )
        elif value and not _QUALIFIED.fullmatch(value):
            found.append(Cause("metadata.labels", f"{_quoted(value)}: a valid label {_PART_RULE}"))
    return found


def _of_annotations(metadata: Json) -> list[Cause]:
    pairs = metadata.get("annotations", {})
    found = [fault for key in pairs for fault in _of_key("metadata.annotations", key.lower())]
    if sum(len(k.encode()) + len(v.encode()) for k, v in pairs.items()) > ANNOTATIONS_LIMIT:
        said = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
        found.append(Cause("metadata.annotations", said, "FieldValueTooLong"))
    return found


def _of_key(field: str, key: str) -> list[Cause]:
    """The key of a label or annotation: `name`, or `domain/name`."""
    domain, slash, name = key.rpartition("/")
    said = []
    if slash and not (len(domain) <= 253 and _SUBDOMAIN.fullmatch(domain)):
        said.append(f"prefix part {_SUBDOMAIN_RULE}")
    if len(name) > 63:
        said.append("name part must be no more than 63 bytes")
    if not _QUALIFIED.fullmatch(name):
        said.append(f"name part {_PART_RULE}")
    return [Cause(field, f"{_quoted(key)}: {why}") for why in said]


def _of_spec(spec: Json) -> list[Cause]:
    found = []
    if (seconds := spec.get("leaseDurationSeconds", 1)) <= 0:
        said = f"{_quoted(seconds)}: must be greater than 0"
        found.append(Cause("spec.leaseDurationSeconds", said))
    if (changes := spec.get("leaseTransitions", 0)) < 0:
        said = f"{_quoted(changes)}: must be greater than or equal to 0"
        found.append(Cause("spec.leaseTransitions", said))
    strategy = spec.get("strategy")
    if strategy is not None and "/" not in strategy and strategy != "OldestEmulationVersion":
        said = f'Unsupported value: "{strategy}": supported values: "OldestEmulationVersion"'
        found.append(Cause("spec.strategy.strategy", said, "FieldValueNotSupported"))
    elif strategy and "/" in strategy:
        found += _of_key("spec.strategy.strategy", strategy)
    if spec.get("preferredHolder") and not strategy:
        said = "Forbidden: may only be specified if `strategy` is defined"
        found.append(Cause("spec.preferredHolder", said, "FieldValueForbidden"))
    return found
