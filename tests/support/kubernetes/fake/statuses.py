"""What the API server says when it refuses: `Status` objects, in its own words.

The texts are those of k8s.io/apimachinery/pkg/api/errors and of the registry that Leases go
through: programs compare codes and reasons, people read the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Cause",
    "Kind",
    "Refused",
    "already_exists",
    "bad_request",
    "conflict",
    "expired",
    "forbidden",
    "internal",
    "invalid",
    "not_found",
    "status",
]

Json = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of object, as `leases.coordination.k8s.io`."""

    group: str
    plural: str
    name: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


@dataclass(frozen=True)
class Cause:
    """What is wrong with one field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class Refused(Exception):
    """Answered with `body`; `text` where the server answers with plain text."""

    def __init__(self, body: Json, *, retry_after: float | None = None, text: str = "") -> None:
        super().__init__(body["message"])
        self.body = body
        self.code: int = body["code"]
        self.retry_after = retry_after
        self.text = text


def status(code: int, reason: str, message: str, **details: Any) -> Json:
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body |= {"message": message} | ({"reason": reason} if reason else {})
    said = {name: value for name, value in details.items() if value not in {"", None}}
    return body | ({"details": said} if said else {}) | {"code": code}


def _of(kind: Kind, name: str) -> Json:
    return {"name": name, "group": kind.group, "kind": kind.plural}


def not_found(kind: Kind, name: str) -> Refused:
    return Refused(
        status(404, "NotFound", f'{kind.resource} "{name}" not found', **_of(kind, name))
    )


def already_exists(kind: Kind, name: str) -> Refused:
    said = f'{kind.resource} "{name}" already exists'
    return Refused(status(409, "AlreadyExists", said, **_of(kind, name)))


def conflict(kind: Kind, name: str, why: str) -> Refused:
    said = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return Refused(status(409, "Conflict", said, **_of(kind, name)))


def forbidden(kind: Kind, name: str, why: str) -> Refused:
    what = f'{kind.resource} "{name}"' if name else kind.resource
    return Refused(status(403, "Forbidden", f"{what} is forbidden: {why}", **_of(kind, name)))


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Refused:
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    errors = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    said = [{"reason": it.reason, "message": it.message, "field": it.field} for it in causes]
    what = f"{kind.name}.{kind.group}" if kind.group else kind.name
    body = status(422, "Invalid", f'{what} "{name}" is invalid: {errors}', name=name)
    body["details"] |= {"group": kind.group, "kind": kind.name, "causes": said}
    return Refused(body)


def bad_request(why: str) -> Refused:
    return Refused(status(400, "BadRequest", why))


def expired(why: str, token: str = "") -> Refused:
    """`token` continues an expired list, from what is there at that time."""
    body = status(410, "Expired", why)
    body["metadata"] = {"continue": token} if token else {}
    return Refused(body)


def internal(why: str) -> Refused:
    """Whether the request was carried out is unknown."""
    return Refused(status(500, "", why))
