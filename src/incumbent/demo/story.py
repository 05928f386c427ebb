"""The demo from its first line to its last: both sides, the judge's verdict, who wrote when."""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from incumbent.demo import ours, plain
from incumbent.demo.accounts import Account, faults_in, seconds_shared, spans_shared
from incumbent.demo.acts import ALL, FOR_LONG, Acts
from incumbent.demo.leaving import Leaving
from incumbent.demo.stage import Missed, Stage
from incumbent.demo.timeline import Row, draw, spell

__all__ = ["tell"]

Print: TypeAlias = "Callable[[str], None]"
Paint: TypeAlias = "Callable[[str, str], str]"

_WIDTH: Final = 72
_LEGEND: Final = (
    "# writes   ! two at once   K killed  S frozen or silent  C goes on  T asked to leave"
)
_NEXT: Final = """\
What next:
  incumbent -s sqlite: lead NAME -- COMMAND      in two terminals; then kill one
  incumbent -s sqlite: status                    who holds what
  INCUMBENT_STORE=redis://...                    instances on several hosts share a server"""


def tell(say: Print, paint: Paint, leaving: Leaving) -> int:
    """Run it. Returns 0 if we never had two at once, terms grew and the late write was refused.

    `paint(text, colour)` colours a text where colours can be seen. Raises OSError if the processes
    cannot be started.
    """
    began = time.monotonic()
    with Stage(leaving) as stage:
        said = _Said(say, paint)
        left, right = Acts(said.scene), Acts(said.scene)
        mine, theirs = ours.Ours(stage, left), plain.Plain(stage, right)
        _header(say, paint, mine)
        _play(mine, theirs, left)
        stage.rest()
        say(
            paint(
                "\nthe same kinds of faults, at the same time: SET NX PX and a renewing thread",
                "bold",
            )
        )
        said.number = 0
        theirs.tell()
        if right.missed:
            say(f"  broken off: {right.missed}")
        verdict = _Verdict(stage, mine, left)
        _charts(say, paint, stage, left, right, began)
    verdict.tell(say, paint)
    say(f"\n{_NEXT}")
    return 0 if verdict.good else 1


class _Said:
    """Numbers the scenes."""

    def __init__(self, say: Print, paint: Paint) -> None:
        self._say, self._paint = say, paint
        self.number = 0

    def scene(self, title: str, measured: str) -> None:
        self.number += 1
        self._say(f"  {self.number} {self._paint(title, 'bold')}")
        self._say(f"      {measured}")


def _header(say: Print, paint: Paint, mine: ours.Ours) -> None:
    words = mine.words(ours.WHO[0])
    options = shlex.join(words[2 : words.index("--")])
    say(paint("Three contenders on SQLite; a process of its own judges who works when:", "bold"))
    say(f"  incumbent -s sqlite:///.../{mine.store.name} {options} -- worker\n")


def _play(mine: ours.Ours, theirs: plain.Plain, left: Acts) -> None:
    # All are started by this thread: what a thread started dies with it.
    mine.start(*ours.WHO)
    theirs.start()
    beside = threading.Thread(target=theirs.play, daemon=True)
    beside.start()
    try:
        mine.play()
    except Missed as missed:
        left.missed = str(missed)
        mine.last_words()
    beside.join(FOR_LONG)


# -- the verdict ---------------------------------------------------------------------------------


class _Verdict:
    def __init__(self, stage: Stage, mine: ours.Ours, left: Acts) -> None:
        self._accounts = stage.accounts(ours.SIDE)
        self._plain = stage.accounts(plain.SIDE)
        self.faults = faults_in(self._accounts)
        if left.missed:
            self.faults.append(left.missed)
        if mine.late != "refused":
            self.faults.append(f"the late write was {mine.late or 'not sent'}")
        self.shared = seconds_shared(self._accounts)

    @property
    def good(self) -> bool:
        return not self.faults and self.shared == 0

    def tell(self, say: Print, paint: Paint) -> None:
        say(f"\nincumbent: {len(self._accounts)} terms\n  " + self._of_ours(paint))
        both = seconds_shared(self._plain)
        words = f"{spell(both)} of two at once" if both else "no overlap this time"
        say(f"plain loop: {len(self._plain)} terms\n  " + paint(words, "red" if both else ""))

    def _of_ours(self, paint: Paint) -> str:
        if self.good:
            return paint("0 s of two at once, terms grew, the late write was refused", "green")
        return paint(
            f"NOT GOOD: {spell(self.shared)} of two at once; " + "; ".join(self.faults), "red"
        )


# -- who wrote when ------------------------------------------------------------------------------


def _charts(say: Print, paint: Paint, stage: Stage, left: Acts, right: Acts, began: float) -> None:
    end = time.monotonic()
    for title, side, names, acts in (
        ("incumbent", ours.SIDE, ours.WHO, left),
        ("plain loop", plain.SIDE, plain.WHO, right),
    ):
        say(f"\n{paint(title, 'bold')}: who wrote when")
        rows = _rows(stage.accounts(side), names, acts)
        for line in draw(rows, began, end, _WIDTH):
            say(f"  {_painted(line, paint)}")
    say(f"\n  {_LEGEND}")


def _painted(line: str, paint: Paint) -> str:
    green = re.sub("#+", lambda run: paint(run[0], "green"), line)
    return re.sub("!+", lambda run: paint(run[0], "red"), green)


def _rows(accounts: Sequence[Account], names: Sequence[str], acts: Acts) -> dict[str, Row]:
    rows = {
        who: Row([a.span for a in accounts if a.who == who and a.span], acts.marks.get(who, ()))
        for who in names
    }
    rows[ALL] = Row(acts.silent, acts.marks.get(ALL, ()), "-")
    if shared := spans_shared(accounts):
        rows["both"] = Row(shared, (), "!")
    return rows
