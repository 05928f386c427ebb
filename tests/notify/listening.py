"""A receiver of notifications, with every fault that one can have."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="
HANGS, SLOW, ENDLESS_HEAD, ENDLESS_BODY, GARBAGE, CLOSES, INTERIM = (
    *("hangs", "slow", "endless head", "endless body", "garbage", "closes", "interim"),
)


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Listening:
    """`answers`: statuses or faults, one a request; the last one stays."""

    answers: list[str]
    headers: str = ""
    requests: list[Received] = field(default_factory=list)
    secured: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self._socket.getsockname()[1]
        self.over = threading.Event()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self.secured else 'http'}://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        return [request.path for request in list(self.requests)]

    def webhooks(self) -> list[dict[str, Any]]:
        """The messages, verified by the reference implementation."""
        from standardwebhooks.webhooks import Webhook

        posts = [request for request in list(self.requests) if request.method == "POST"]
        return [Webhook(SECRET).verify(post.body, post.headers) for post in posts]

    def close(self) -> None:
        self.over.set()
        for sock in (self._socket, *self._open):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                self._open.append(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with suppress(OSError):
            if self.secured is not None:
                peer = self.secured.wrap_socket(peer, server_side=True)
            head, _, body = self._read(peer, b"").partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = {
                name.lower(): value for name, _, value in (it.partition(": ") for it in lines)
            }
            while len(body) < int(headers.get("content-length", 0)):
                body += peer.recv(65_536)
            method, path, _ = first.split()
            self.requests.append(Received(method, path, headers, body))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self._answer(peer, answer)
            peer.close()

    @staticmethod
    def _read(peer: socket.socket, data: bytes) -> bytes:
        while b"\r\n\r\n" not in data:
            if not (more := peer.recv(65_536)):
                raise OSError
            data += more
        return data

    def _answer(self, peer: socket.socket, answer: str) -> None:
        if answer == HANGS:
            self.over.wait()
        elif answer == SLOW:
            for byte in b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000:
                peer.send(bytes((byte,)))
                if self.over.wait(0.05):
                    return
        elif answer in (ENDLESS_HEAD, ENDLESS_BODY):
            peer.send(b"HTTP/1.1 200 OK\r\n" + b"\r\n" * (answer == ENDLESS_BODY))
            while not self.over.is_set():
                peer.send(b"x" * 65_536)
        elif answer == GARBAGE:
            peer.send(b"\0\1\2 220 smtp.example ESMTP\r\n\r\n")
        elif answer == INTERIM:
            peer.send(
                b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            )
        elif answer != CLOSES:
            head = f"HTTP/1.1 {answer} X\r\n{self.headers}Content-Length: 2\r\n\r\nOK"
            peer.send(head.encode())


@contextmanager
def listening(
    *answers: str, headers: str = "", secured: ssl.SSLContext | None = None
) -> Iterator[Listening]:
    made = Listening(list(answers or ("200",)), headers, secured=secured)
    try:
        yield made
    finally:
        made.close()


def nobody() -> str:
    """A URL at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"http://127.0.0.1:{sock.getsockname()[1]}"
