"""The whole demo: the scenes of both sides, a drawing of who wrote when, and the verdict.

seconds 0    1    2    3
one     ####x
two           #####z
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Final, NamedTuple

from incumbent.demo.judge import Account, faults_in, seconds_shared, spans_shared
from incumbent.demo.scenes import STORE, DemoSide, Ours, Plain, Scene, Stage, spell

_WIDTH: Final = 72
_LEGEND: Final = (
    "# writes   ! two at once   K killed  S frozen or silent  C goes on  T asked to leave"
)
_NEXT: Final = """\
What next:
  incumbent -s sqlite: lead demo -- sleep 600    in two terminals; then kill one
  incumbent -s sqlite: status                    who holds what
  INCUMBENT_STORE=redis://...                    instances on several hosts share a server"""


def command(_request: object) -> int:
    """Run the demo; returns 0 if all is well: never two at once, terms grew, late write refused.

    The demo has a store of its own, whatever the settings are. Raises OSError if a process cannot
    be started, SystemExit if the demo is asked to end (INT, TERM).
    """
    began = time.monotonic()
    with Stage() as stage:
        shown_later: list[Scene] = []
        ours = Ours(stage, _show)
        plain = Plain(stage, shown_later.append)
        words = ours.command("one")
        options = shlex.join(words[3 : words.index("--")])
        _say(_paint("Three contenders on SQLite; a process of its own judges who works when:"))
        _say(f"  incumbent -s sqlite:///.../{ours.store.name} {options} -- worker\n")
        _play(stage, ours, plain)
        mine, theirs, end = ours.accounts(), plain.accounts(), time.monotonic()
    same = "the same kinds of faults, at the same time: SET NX PX and a renewing thread"
    _say("\n" + _paint(same))
    for scene in shown_later:
        _show(scene)
    if plain.missed:
        _say(f"  broken off: {plain.missed}")
    for title, side, accounts in (("incumbent", ours, mine), ("plain loop", plain, theirs)):
        _say(f"\n{_paint(title)}: who wrote when")
        for line in draw(_rows(side, accounts), began, end, _WIDTH):
            green = re.sub("#+", lambda run: _paint(run[0], _GREEN), line)
            _say("  " + re.sub("!+", lambda run: _paint(run[0], _RED), green))
    _say(f"\n  {_LEGEND}")
    faults = _faults(ours, mine)
    good = _paint("0 s of two at once, terms grew, the late write was refused", _GREEN)
    bad = _paint(f"NOT GOOD: {'; '.join(faults)}", _RED)
    _say(f"\nincumbent: {len(mine)} terms\n  {bad if faults else good}")
    both = seconds_shared(theirs)
    overlap = _paint(f"{spell(both)} of two at once", _RED) if both else "no overlap this time"
    _say(f"plain loop: {len(theirs)} terms\n  {overlap}\n\n{_NEXT}")
    return 1 if faults else 0


_BOLD, _RED, _GREEN = 1, 31, 32


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _paint(text: str, colour: int = _BOLD) -> str:
    """Colour a text, if stdout is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{colour}m{text}\033[0m"


def _show(scene: Scene) -> None:
    _say(f"  {scene.number} {_paint(scene.title)}\n      {scene.measured}")


def _play(stage: Stage, ours: Ours, plain: Plain) -> None:
    ours.start(*ours.contenders)
    plain.start(*plain.contenders)
    beside = threading.Thread(target=plain.run, daemon=True)
    beside.start()
    ours.run()
    if ours.missed:
        for who in ours.contenders:
            ours.scene(f"{who} said last", stage.last_words(who))
    while beside.is_alive():
        stage.sleep(0.1)


def _faults(ours: Ours, accounts: Sequence[Account]) -> list[str]:
    faults = faults_in(accounts)
    if shared := seconds_shared(accounts):
        faults.insert(0, f"{spell(shared)} of two at once")
    if ours.missed:
        faults.append(ours.missed)
    if ours.late != "refused":
        faults.append(f"the late write was {ours.late or 'not sent'}")
    return faults


def _rows(side: DemoSide, accounts: Sequence[Account]) -> dict[str, StoryRow]:
    rows = {
        who: StoryRow(
            [a.span for a in accounts if a.who == who and a.span], side.marks.get(who, ())
        )
        for who in side.contenders
    }
    rows[STORE] = StoryRow(side.silences, side.marks.get(STORE, ()), "-")
    if shared := spans_shared(accounts):
        rows["both"] = StoryRow(shared, (), "!")
    return rows


# -- the drawing: instants in, lines out ----------------------------------------------------------


class StoryRow(NamedTuple):
    """One line: `spans` are drawn as `sign`, and over them each of the `marks` (instant, sign)."""

    spans: Sequence[tuple[float, float]]
    marks: Sequence[tuple[float, str]] = ()
    sign: str = "#"


def draw(rows: Mapping[str, StoryRow], start: float, end: float, width: int) -> list[str]:
    """The axis, then a line for each row; one column is `(end - start) / width` seconds."""
    column = max(end - start, 1e-9) / width
    margin = max(map(len, (*rows, "seconds"))) + 1
    lines = ["seconds".ljust(margin) + _axis(column, width)]
    for name, row in rows.items():
        lines.append((name.ljust(margin) + _cells(row, start, column, width)).rstrip())
    return lines


def _axis(column: float, width: int) -> str:
    cells = [" "] * (width + 4)
    # The smallest step at which the numbers do not touch.
    step = next(step for step in (1, 2, 5, 10, 60, 600) if step / column >= 5 or step == 600)
    for second in range(0, floor(column * width) + 1, step):
        at = floor(second / column)
        cells[at : at + len(str(second))] = str(second)
    return "".join(cells).rstrip()


def _cells(row: StoryRow, start: float, column: float, width: int) -> str:
    cells = [" "] * width
    for begin, end in row.spans:
        for at in _columns((begin - start) / column, (end - start) / column):
            if 0 <= at < width:
                cells[at] = row.sign
    for instant, sign in row.marks:
        at = min(width - 1, floor((instant - start) / column))
        if at >= 0:
            cells[at] = sign
    return "".join(cells)


def _columns(begin: float, end: float) -> range:
    """The columns that a span fills to at least a half, or the column in which it begins."""
    filled = range(ceil(begin - 0.5), floor(end + 0.5))
    return filled if filled else range(floor(begin), floor(begin) + 1)
