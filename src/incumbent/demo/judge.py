"""The judge: a process of its own, which believes no contender and asks the kernel.

    python -m incumbent.demo.judge SOCKET

A worker overlaps with another if it found the other's file lock taken, or if the other's connection
was still open when it began: whatever arrived by then is read first, so an end that came before is
seen as one. Each account is printed as a line of JSON at its beginning, its first write and its
end, and all of them once more when standard input ends.
"""

from __future__ import annotations

import json
import sys
import time

from incumbent.demo.accounts import Account
from incumbent.demo.lines import LineServer

__all__: list[str] = []


class _Judge:
    def __init__(self, path: str) -> None:
        self._accounts: dict[int, Account] = {}
        self._server = LineServer(path, self._said, self._ended)

    def sit(self) -> None:
        self._server.serve()
        self._server.catch_up()
        for account in self._accounts.values():
            _print(account)

    def _said(self, number: int, line: str) -> str:
        said = json.loads(line)
        if "side" in said:
            self._begin(number, said)
            return ""
        account = self._accounts[number]
        first = account.first is None
        account.wrote(said["wrote"], taken=said["taken"])
        if first:
            _print(account)
        return ""

    def _begin(self, number: int, said: dict[str, object]) -> None:
        account = Account(number=number, **said)  # type: ignore[arg-type]  # as the worker sends it
        self._accounts[number] = account
        self._server.catch_up()
        others = (other for other in self._accounts.values() if other is not account)
        account.met = tuple(o.number for o in others if o.side == account.side and o.gone is None)
        _print(account)

    def _ended(self, number: int) -> None:
        if number in self._accounts:
            self._accounts[number].gone = time.monotonic()
            _print(self._accounts[number])


def _print(account: Account) -> None:
    sys.stdout.write(json.dumps(account.as_dict()) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _Judge(sys.argv[1]).sit()
