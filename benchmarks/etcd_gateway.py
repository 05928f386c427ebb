"""The JSON gateway of etcd, bare: one keep-alive socket, and requests of ready-made bytes."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Self

__all__ = ["Gateway", "coded", "create", "delete", "request"]


def coded(key: str) -> str:
    """As the gateway wants bytes."""
    return b64encode(key.encode()).decode()


def request(path: str, body: dict[str, Any]) -> bytes:
    """The bytes of one request."""
    data = json.dumps(body).encode()
    head = f"POST /v3/{path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def create(key: str, lease: str) -> dict[str, Any]:
    """A txn that puts `key` on `lease` if there is none, else reads who holds it."""
    compare = {"key": coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": 0}
    put = {"request_put": {"key": coded(key), "value": coded("bench"), "lease": lease}}
    read = {"request_range": {"key": coded(key)}}
    return {"compare": [compare], "success": [put], "failure": [read]}


def delete(key: str) -> dict[str, Any]:
    """A txn that deletes `key` if it is ours."""
    compare = {"key": coded(key), "target": "VALUE", "result": "EQUAL", "value": coded("bench")}
    gone = {"request_delete_range": {"key": coded(key)}}
    return {"compare": [compare], "success": [gone]}


class Gateway:
    """One connection; answers are read whole, and parsed only by `ask`."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> bytes:
        """The body of the answer."""
        self._sock.sendall(data)
        got = self._sock.recv(65536)
        while b"\r\n\r\n" not in got:
            got += self._sock.recv(65536)
        head, _, body = got.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the gateway said {got!r}")
        return self._rest(head.lower(), body)

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = json.loads(self.send(request(path, body)))
        return dict(answer.get("result", answer))

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        """The lines of an answer without an end, for as long as the connection lives."""
        self._sock.sendall(request(path, body))
        with self._sock.makefile("rb") as lines:
            yield from lines

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rest(self, head: bytes, body: bytes) -> bytes:
        if b"content-length: " not in head:
            while not body.endswith(b"0\r\n\r\n"):
                body += self._sock.recv(65536)
            return body.split(b"\r\n", 2)[1]
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < length:
            body += self._sock.recv(65536)
        return body
