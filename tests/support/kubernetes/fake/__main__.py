"""python -m tests.support.kubernetes.fake FOLDER: the server itself, a process of its own.

FOLDER has `start.json` (port, etcd, certificate), `settings.json`, and becomes the place of
`control.sock` (commands of the tests, a line of JSON each) and `requests.jsonl` (what was served).
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.support.kubernetes.fake import discovery
from tests.support.kubernetes.fake.gate import ADMIN, Asked, Gate, Settings, tls_context
from tests.support.kubernetes.fake.objects import LEASES, NAMESPACES, PODS
from tests.support.kubernetes.fake.registry import Registry
from tests.support.kubernetes.fake.selectors import Selector
from tests.support.kubernetes.fake.statuses import (
    Json,
    Refused,
    bad_request,
    status,
)
from tests.support.kubernetes.fake.verbs import Verbs
from tests.support.kubernetes.fake.watches import Watch, events

KINDS = {(kind.group, kind.plural): kind for kind in (LEASES, PODS, NAMESPACES)}
BODY_LIMIT = 3 * 1024 * 1024
MERGES = {"application/merge-patch+json", "application/strategic-merge-patch+json"}
ONE = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
MANY = {"GET": "list", "POST": "create"}


class Server:
    def __init__(self, folder: Path, start: Json) -> None:
        self.folder = folder
        self.start = start
        self.registry = Registry(start["etcd"])
        self.verbs = Verbs(self.registry)
        self.gate = Gate(Settings())
        self.watches: set[asyncio.Task[Any]] = set()
        self.log = (folder / "requests.jsonl").open("a", buffering=1)
        self.change(json.loads((folder / "settings.json").read_text()))

    def change(self, settings: Json) -> None:
        self.gate.settings.update(settings)
        self.verbs.ahead = self.gate.settings.ahead

    # -- one request

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Whatever comes: routes are few, and their verbs depend on the query."""
        asked: Asked | None = None
        verb, user = request.method.lower(), ""
        try:
            user = self.gate.user_of(request)
            if user != ADMIN:
                self.gate.fail()
            asked = self._understand(request, user)
            if asked is None:
                return await self._other(request, user)
            verb = asked.verb
            self.gate.check(asked)
            if verb == "watch":
                return await self._watch(request, asked)
            # A client that goes away ends nothing that it asked for.
            return await asyncio.shield(self._carry_out(request, asked))
        except Refused as refused:
            self._note(user, verb, request, refused.code)
            return self._refusal(refused)

    async def _carry_out(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        settings, counted = self.gate.settings, asked.user != ADMIN
        body = await self._body(request)
        if counted and (seconds := settings.takes("delay", asked)):
            await asyncio.sleep(seconds)
        code, made = await self._done(request, asked, body)
        if counted and settings.takes("lose", asked):
            self._note(asked.user, asked.verb, request, 0)
            if request.transport is not None:
                request.transport.abort()
        else:
            self._note(asked.user, asked.verb, request, code)
        return self._answer(made, code)

    async def _done(self, request: web.Request, asked: Asked, body: bytes) -> tuple[int, Json]:
        """Status and object."""
        verbs, kind, namespace, name = self.verbs, asked.kind, asked.namespace, asked.name
        query = dict(request.query)
        match asked.verb:
            case "get":
                return 200, await verbs.get(kind, namespace, name)
            case "list":
                return 200, await verbs.list(kind, namespace, _selector(query), query)
            case "create":
                return 201, await verbs.create(kind, namespace, body)
            case "update":
                made, created = await verbs.update(kind, namespace, name, body)
                return (201 if created else 200), made
            case "patch":
                return 200, await verbs.patch(kind, namespace, name, body)
            case _:
                return 200, await verbs.delete(kind, namespace, name, body)

    async def _watch(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        query = dict(request.query)
        watch = self._watch_of(asked, query)
        answer = web.StreamResponse(headers=self._headers({"Content-Type": "application/json"}))
        answer.enable_chunked_encoding()
        self._note(asked.user, "watch", request, 200)
        await answer.prepare(request)
        seconds = float(query.get("timeoutSeconds") or 1800)
        task = asyncio.ensure_future(self._send(answer, watch))
        self.watches.add(task)
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            self.watches.discard(task)
            cut = task.cancelled()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if cut and request.transport is not None:
            request.transport.abort()  # as if the network had done it
        return answer

    async def _send(self, answer: web.StreamResponse, watch: Watch) -> None:
        try:
            async with aclosing(events(self.registry, watch)) as stream:
                async for event in stream:
                    await answer.write(json.dumps(event).encode() + b"\n")
        except (aiohttp.ClientError, ConnectionError, Refused):
            return  # etcd or the client has gone: a watch ends without a word

    # -- inside

    def _understand(self, request: web.Request, user: str) -> Asked | None:
        """None for what is no collection or object of ours."""
        parts = [part for part in request.path.split("/") if part]
        if parts[:2] == ["api", "v1"]:
            group, rest = "", parts[2:]
        elif len(parts) > 2 and parts[0] == "apis" and parts[2] == "v1":
            group, rest = parts[1], parts[3:]
        else:
            return None
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = KINDS.get((group, rest[0])) if rest else None
        if kind is None or len(rest) > 2:
            return None
        name = rest[1] if len(rest) == 2 else ""
        verb = (ONE if name else MANY).get(request.method)
        if verb is None:
            said = "the server does not allow this method on the requested resource"
            raise Refused(status(405, "MethodNotAllowed", said))
        if verb == "list" and request.query.get("watch") in {"1", "true", "True"}:
            verb = "watch"
        return Asked(verb, kind, namespace, name, user)

    async def _body(self, request: web.Request) -> bytes:
        body = await request.read()
        if len(body) > BODY_LIMIT:
            said = f"Request entity too large: limit is {BODY_LIMIT}"
            raise Refused(status(413, "RequestEntityTooLarge", said))
        wanted = MERGES if request.method == "PATCH" else {"application/json"}
        if request.method in {"POST", "PUT", "PATCH"}:
            given = request.headers.get("Content-Type", "application/json").partition(";")[0]
            if given.strip() not in wanted:
                said = f"the body of the request was in an unknown format: {given}"
                raise Refused(status(415, "UnsupportedMediaType", said))
        return body

    def _watch_of(self, asked: Asked, query: dict[str, str]) -> Watch:
        start = query.get("resourceVersion") or "0"
        if not start.isdigit():
            raise bad_request(f"invalid resource version: {start!r}")
        every = self.gate.settings.bookmark_every if _said(query, "allowWatchBookmarks") else None
        initial = _said(query, "sendInitialEvents")
        return Watch(
            asked.kind,
            asked.namespace,
            _selector(query),
            0 if initial else int(start),
            every,
            says_when_initial_ends=initial,
        )

    async def _other(self, request: web.Request, user: str) -> web.StreamResponse:
        """Reviews of access, the version, discovery."""
        made = discovery.answer(request.path)
        code = 200
        if made is None and request.method == "POST":
            made, code = (
                discovery.review(request.path, await self._body(request), user, self.gate),
                201,
            )
        if made is None:
            said = "the server could not find the requested resource"
            raise Refused(status(404, "NotFound", said))
        self._note(user, request.method.lower(), request, code)
        if isinstance(made, str):
            return web.Response(text=made, headers=self._headers({}))
        return self._answer(made, code)

    def _answer(self, made: Json, code: int) -> web.Response:
        # In bytes: of a text aiohttp would name the charset, which the real server does not.
        headers = self._headers({"Content-Type": "application/json"})
        return web.Response(body=json.dumps(made).encode(), status=code, headers=headers)

    def _refusal(self, refused: Refused) -> web.Response:
        answer = self._answer(refused.body, refused.code)
        if refused.text:
            answer = web.Response(text=refused.text, status=refused.code, headers=self._headers({}))
        if refused.retry_after is not None:
            answer.headers["Retry-After"] = str(refused.retry_after)
        return answer

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        return {"Date": self.gate.date(), "Cache-Control": "no-cache, private"} | more

    def _note(self, user: str, verb: str, request: web.Request, code: int) -> None:
        if user != ADMIN:
            self.log.write(json.dumps([verb, request.path_qs, code]) + "\n")

    # -- commands of the tests

    async def obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = json.loads(await reader.readline())
        self.change(command.get("set", {}))
        if command.get("cut"):
            for task in self.watches:
                task.cancel()
        writer.write(b"done\n")
        writer.close()


def _said(query: dict[str, str], name: str) -> bool:
    return query.get(name, "") in {"1", "true", "True"}


def _selector(query: dict[str, str]) -> Selector:
    return Selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))


async def main(folder: Path) -> None:
    start = json.loads((folder / "start.json").read_text())
    server = Server(folder, start)
    app = web.Application(client_max_size=2 * BODY_LIMIT)
    app.router.add_route("*", "/{path:.*}", server.serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    control = folder / "control.sock"
    control.unlink(missing_ok=True)
    await asyncio.start_unix_server(server.obey, control)
    tls = tls_context(*start["tls"]) if start["tls"] else None
    await web.TCPSite(
        runner, start["host"], start["port"], ssl_context=tls, reuse_address=True
    ).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
