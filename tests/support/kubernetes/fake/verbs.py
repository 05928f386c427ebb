"""create, get, list, update, patch and delete, as the registry of an API server carries them out.

After k8s.io/apiserver/pkg/registry/generic/registry/store.go. What programs trip over:

- A PUT names the resourceVersion that it saw; another one is a conflict (409), none is invalid.
- A PUT of what is there already writes nothing, and gives the resourceVersion that was there.
- **A PUT to a Lease that is gone makes it anew**, whatever resourceVersion it names: Leases allow
  create on update. Only a uid in the object is a precondition that refuses it (409).
- A POST must not name a resourceVersion (500).
"""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from tests.support.kubernetes.fake.objects import NAMESPACES, decode, faults_of
from tests.support.kubernetes.fake.registry import Compacted, Registry, Stored
from tests.support.kubernetes.fake.selectors import Selector
from tests.support.kubernetes.fake.statuses import (
    Cause,
    Json,
    Kind,
    Refused,
    already_exists,
    bad_request,
    conflict,
    expired,
    forbidden,
    internal,
    invalid,
    not_found,
    status,
)

__all__ = ["Verbs", "key_of", "prefix_of"]

_MODIFIED: Final = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
_OLD_TOKEN: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter, or use the continue token in this response."
)
_GENERATED: Final = "bcdfghjklmnpqrstvwxz2456789"


def prefix_of(kind: Kind, namespace: str) -> str:
    base = f"/registry/{kind.plural}/"
    return f"{base}{namespace}/" if namespace else base


def key_of(kind: Kind, namespace: str, name: str) -> str:
    return f"{prefix_of(kind, namespace)}{name}"


class Verbs:
    """`ahead`: seconds by which this server's clock is ahead."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.ahead = 0.0

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        return (await self._there(kind, namespace, name)).object

    async def list(
        self, kind: Kind, namespace: str, selector: Selector, query: dict[str, str]
    ) -> Json:
        limit, start, revision = _page(query)
        prefix = prefix_of(kind, namespace)
        chosen: list[Stored] = []
        try:
            # Pages are filled, however few objects the selector leaves.
            while True:
                listed = await self._registry.all_below(
                    prefix, start=start, limit=limit and limit - len(chosen), revision=revision
                )
                _refuse_the_future(query, listed.revision)
                chosen += [it for it in listed.found if selector.fits(it.object)]
                revision = revision or listed.revision
                left = listed.count - len(listed.found)
                if not left or len(chosen) >= limit:
                    break
                start = _after(listed.found)
        except Compacted:
            if query.get("continue"):
                raise expired(_OLD_TOKEN, _token(0, start)) from None
            raise expired("The resourceVersion for the provided list is too old.") from None
        metadata: Json = {"resourceVersion": str(revision)}
        if left:
            metadata["continue"] = _token(revision, _after(listed.found))
            metadata |= {} if selector.chooses else {"remainingItemCount": left}
        body = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
        return body | {"items": [it.object for it in chosen]}

    async def create(self, kind: Kind, namespace: str, body: bytes) -> Json:
        made = decode(kind, body)
        metadata = made["metadata"]
        if metadata.get("resourceVersion", "0") != "0":
            raise internal("resourceVersion should not be set on objects to be created")
        return (await self._create(kind, namespace, made)).object

    async def update(self, kind: Kind, namespace: str, name: str, body: bytes) -> tuple[Json, bool]:
        """The object, and whether it was made by this."""
        made = decode(kind, body)
        given = made["metadata"].setdefault("name", name)
        if given != name:
            raise bad_request(
                f"the name of the object ({given}) does not match the name on the URL ({name})"
            )
        while True:
            old = await self._registry.get(key_of(kind, namespace, name))
            _check_uid(kind, name, made, old)
            if old is None:
                try:
                    return (await self._create(kind, namespace, made)).object, True
                except Refused as refused:
                    if refused.body.get("reason") != "AlreadyExists":
                        raise
            elif written := await self._replace(kind, namespace, old, made):
                return written.object, False

    async def patch(self, kind: Kind, namespace: str, name: str, body: bytes) -> Json:
        """A merge patch; it is repeated until it meets no other write."""
        change = json.loads(body)
        while True:
            old = await self._there(kind, namespace, name)
            merged = _merged(old.object, change)
            made = decode(kind, json.dumps(merged).encode())
            if written := await self._replace(kind, namespace, old, made):
                return written.object

    async def delete(self, kind: Kind, namespace: str, name: str, body: bytes) -> Json:
        wanted = (json.loads(body) if body else {}).get("preconditions") or {}
        while True:
            old = await self._there(kind, namespace, name)
            metadata = old.object["metadata"]
            for part, value in wanted.items():
                if value is not None and metadata.get(part) != value:
                    raise conflict(
                        kind, name, f"the {part} in the precondition ({value}) does not match"
                    )
            if kind is NAMESPACES:
                await self._empty(name)
            if await self._registry.delete(old):
                said: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
                details = {"name": name, "group": kind.group, "kind": kind.plural}
                return said | {
                    "status": "Success",
                    "details": details | {"uid": metadata.get("uid")},
                }

    # -- inside

    async def _there(self, kind: Kind, namespace: str, name: str) -> Stored:
        found = await self._registry.get(key_of(kind, namespace, name))
        if found is None:
            raise not_found(kind, name)
        return found

    async def _create(self, kind: Kind, namespace: str, made: Json) -> Stored:
        given = made["metadata"]
        name = given.get("name", "")
        if not name and (begin := given.get("generateName", "")):
            name = f"{begin[:58]}{''.join(secrets.choice(_GENERATED) for _ in range(5))}"
        now = datetime.fromtimestamp(datetime.now(UTC).timestamp() + self.ahead, UTC)
        own = {"uid": str(uuid4()), "creationTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ")}
        fresh = made | {"metadata": given | ({"name": name} if name else {}) | own}
        _place(kind, namespace, fresh)
        await self._admit(kind, namespace, name, creates=True)
        if causes := faults_of(kind, fresh):
            raise invalid(kind, name, causes)
        written = await self._registry.create(key_of(kind, namespace, name), fresh)
        if written is None:
            raise already_exists(kind, name)
        return written

    async def _replace(self, kind: Kind, namespace: str, old: Stored, made: Json) -> Stored | None:
        """What is there afterwards; None if another write came first."""
        before = old.object
        name, version = before["metadata"]["name"], made["metadata"].get("resourceVersion", "")
        # Only the kinds of the core may be replaced whatever is there.
        if not version and kind.group:
            cause = Cause(
                "metadata.resourceVersion", "Invalid value: 0: must be specified for an update"
            )
            raise invalid(kind, name, [cause])
        if version and version != before["metadata"]["resourceVersion"]:
            raise conflict(kind, name, _MODIFIED)
        kept = {part: before["metadata"][part] for part in ("uid", "creationTimestamp")}
        fresh = made | {"metadata": made["metadata"] | kept}
        fresh["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        _place(kind, namespace, fresh)
        await self._admit(kind, namespace, name, creates=False)
        if causes := faults_of(kind, fresh):
            raise invalid(kind, name, causes)
        return old if fresh == before else await self._registry.replace(old, fresh)

    async def _admit(self, kind: Kind, namespace: str, name: str, *, creates: bool) -> None:
        """There is such a namespace, and nothing new goes into one that is being deleted."""
        if not kind.namespaced:
            return
        found = (await self._there(NAMESPACES, "", namespace)).object
        if creates and found.get("status", {}).get("phase") == "Terminating":
            why = f"unable to create new content in namespace {namespace}"
            raise forbidden(kind, name, f"{why} because it is being terminated")

    async def _empty(self, namespace: str) -> None:
        """What the controller of namespaces does."""
        for plural in ("leases", "pods"):
            for it in (await self._registry.all_below(f"/registry/{plural}/{namespace}/")).found:
                await self._registry.delete(it)


def _place(kind: Kind, namespace: str, made: Json) -> None:
    if not kind.namespaced:
        return
    if made["metadata"].setdefault("namespace", namespace) != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _check_uid(kind: Kind, name: str, made: Json, old: Stored | None) -> None:
    wanted = made["metadata"].get("uid", "")
    there = old.object["metadata"]["uid"] if old else ""
    if wanted and wanted != there:
        raise conflict(
            kind,
            name,
            "StorageError: invalid object, Code: 4, AdditionalErrorMsg: Precondition failed: "
            f"UID in precondition: {wanted}, UID in object meta: {there}",
        )


def _merged(old: Any, change: Any) -> Any:
    """RFC 7386; for maps of texts a strategic merge is the same."""
    if not isinstance(change, dict):
        return change
    made = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name), value)
    return made


# -- lists ----------------------------------------------------------------------------------------


def _page(query: dict[str, str]) -> tuple[int, str, int]:
    """limit, first key (or "") and revision (0: the newest)."""
    limit = int(query.get("limit") or "0")
    version = query.get("resourceVersion") or "0"
    if not version.isdigit():
        raise bad_request(f"invalid resource version: {version!r}")
    if token := query.get("continue"):
        if version != "0":
            raise bad_request("specifying resource version is not allowed when using continue")
        try:
            said = json.loads(urlsafe_b64decode(token))
            return limit, str(said["start"]), max(0, int(said["rv"]))
        except (ValueError, KeyError):
            raise bad_request("continue key is not valid") from None
    match = query.get("resourceVersionMatch", "")
    exact = match == "Exact" or (limit and not match)
    return limit, "", int(version) if exact else 0


def _refuse_the_future(query: dict[str, str], present: int) -> None:
    if (wanted := int(query.get("resourceVersion") or "0")) > present:
        said = f"Timeout: Too large resource version: {wanted}, current: {present}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        body = status(504, "Timeout", said, retryAfterSeconds=1)
        body["details"]["causes"] = [cause]
        raise Refused(body, retry_after=1)


def _token(revision: int, start: str) -> str:
    said = {"v": "meta.k8s.io/v1", "rv": revision, "start": start}
    return urlsafe_b64encode(json.dumps(said).encode()).decode()


def _after(found: list[Stored]) -> str:
    return found[-1].key + "\0"
