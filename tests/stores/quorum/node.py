"""One node of a quorum as its scripts make it, on a real server; a piece may be replaced."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import redis

from incumbent.stores.quorum.dialect import SCRIPTS
from incumbent.stores.quorum.read import pasts_of

__all__ = ["MARKER", "MINUTE", "SECOND", "Node"]

MINUTE, SECOND = 60_000_000, 1_000_000
MARKER = "marker:{x}"


class Node:
    """One name on one server; `without` replaces a piece of a script's text."""

    def __init__(self, client: redis.Redis, without: tuple[str, str, str] | None) -> None:
        self.client = client
        self.scripts = {name: it.text.decode() for name, it in SCRIPTS.items()}
        if without is not None:
            script, piece, instead = without
            if self.scripts[script].count(piece) != 1:
                # No AssertionError, for which a test takes a bug that is caught.
                raise LookupError(f"the planted bug has no place: {piece}")
            self.scripts[script] = self.scripts[script].replace(piece, instead)
        name = secrets.token_hex(4)
        self.main, self.beside = f"k:{{{name}}}", f"k:{{{name}}}:b"
        self.past, self.switches = f"k:{{{name}}}:h", f"k:{{{name}}}:r"
        # Of a node that was never blank: its floor is that of the names.
        client.set(MARKER, "incumbent1 m 0 1000")

    @property
    def now(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds) * SECOND + int(micros)

    def _run(self, script: str, keys: int, *parts: object) -> object:
        return self.client.eval(self.scripts[script], keys, *parts)  # type: ignore[arg-type]

    def take(
        self,
        claim: str,
        ballot: int,
        *,
        members: str = "m",
        wait: int | str = 0,
        longest: int = 1000,
        up: bool = False,
        who: str = "me",
    ) -> object:
        keys = (self.main, self.beside, MARKER, self.past, self.switches)
        ask = (f"incumbent1 {claim} ", ballot, f" 5000 {who} ", 5000, 60_000)
        fit = (f"incumbent1 {members} 0 {longest}", wait, f" {who}")
        return self._run("take", 5, *keys, *ask, *fit, "+" if up else "-")

    def kind(self, answer: object) -> str:
        return answer[0] if isinstance(answer, list) else "vote"

    def revoke(self, claim: str, ballot: int) -> object:
        return self._run("revoke", 2, self.main, self.beside, f"incumbent1 {claim} ", ballot)

    def give(self, claim: str, token: int, ended: int) -> object:
        held = f"incumbent1 {claim} {token} "
        return self._run("give", 2, self.main, self.beside, held, f" {ended}")

    def renew(
        self, claim: str, token: int, ttl: int = 5000, wait: str = "0", longest: int = 1000
    ) -> object:
        keys = (MARKER, self.main, self.beside, self.switches)
        held = f"incumbent1 {claim} {token} "
        answers = self._run(
            "renew", 4, *keys, "echo", "incumbent1 m ", wait, longest, held, ttl, "-"
        )
        assert isinstance(answers, list)
        assert answers[0] == "echo"
        return answers[1]

    def plant(self, claim: str, token: int, floor: str, wait: int = 0) -> object:
        value = f"incumbent1 {claim} {token} 0 1 5000 me "
        keys = (self.main, self.beside, MARKER)
        return self._run("plant", 3, *keys, value, 5000, 60_000, "incumbent1 m ", wait, floor)

    def promise(self, ballot: int, entry: str = "f:pause", held: str = "") -> list[str | int]:
        keys = (self.switches, MARKER, self.main)
        told: Any = self._run("promise", 3, *keys, ballot, "incumbent1 m ", 1000, entry, held)
        return list(told)

    def accept(
        self,
        ballot: int,
        state: int | str,
        entry: str = "",
        what: str = "-",
        *entries: str,
        held: str = "",
    ) -> object:
        keys = (self.switches, MARKER, self.main, self.beside)
        about = (ballot, "incumbent1 m ", state, held, entry, what, 60_000)
        return self._run("accept", 4, *keys, *about, *entries)

    def change(self, entry: str, what: str, ballot: int = 0) -> int:
        """An entry as a majority of one changes it."""
        ballot = ballot or self.now
        (states, _, _) = self.promise(ballot, entry)
        assert self.accept(ballot, str(states).split()[0], entry, what) == 1
        return ballot

    @property
    def floor(self) -> str | None:
        kept: Any = self.client.get(self.beside)
        return str(kept)[:16] if kept else None

    @property
    def history(self) -> list[tuple[str, int, bool]]:
        both: Any = self.client.mget(self.beside, self.past)
        return [
            (it.holder, it.token, it.ended is not None)
            for it in pasts_of(*(text and text.encode() for text in both))
        ]

    def tells(self, do: Callable[[], object]) -> bool:
        """Whether those who listen hear of it."""
        listening: Any = self.client.pubsub()  # type: ignore[no-untyped-call]
        with listening:
            listening.subscribe(self.beside)
            assert listening.get_message(timeout=5)["type"] == "subscribe"
            do()
            self.client.publish(self.beside, "the end")
            return bool(listening.get_message(timeout=5)["data"] != "the end")

    def expire(self) -> None:
        self.client.delete(self.main)
