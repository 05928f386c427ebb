"""A recording as a text file, the comparison of two, and the cases that show every request."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path

__all__ = ["Recording", "differences", "merged", "read_run", "thin", "unseen"]

Cases = dict[str, set[str]]
"""The different requests of each case."""

_TEXT = re.compile(r"<text \w+>")
_NAMES = re.compile(r"<ns>[^}\s'\",]*|\b(?:somebody|alice|bob|carol|h\d+|of [^\s']+|of%20\S+)")
"""Of keys and holders: the same request."""
_FIRST = re.compile(
    r'incumbent:{incumbent}:server incumbent1 |"request_put": {"key": "/incumbent!born'
    r'|"request_delete_range": {"key": "/incumbent!nothing'
)
"""Sent by whichever case is the first on a server: the marker of its incarnation."""
_SEVERAL = 4
_ANY = "any"
"""The name under which that is recorded."""
_HEAD = "# What the contract run sends; `python -m tests.recorded record {}` renews it.\n"


@dataclass
class Recording:
    """What every run sends, and what only some of them did."""

    always: Cases = field(default_factory=dict)
    sometimes: Cases = field(default_factory=dict)

    @property
    def cases(self) -> list[str]:
        """All cases, by name."""
        return sorted(self.always.keys() - {_ANY})

    @property
    def timed(self) -> set[str]:
        """Requests of the kinds that some case sent in some runs only: timing decides."""
        kinds = {_kind(it) for requests in self.sometimes.values() for it in requests}
        every = set().union(*self.always.values(), *self.sometimes.values())
        return {it for it in every if _kind(it) in kinds}

    def write(self, path: Path) -> None:
        """Each request once, then the cases with the digests of theirs."""
        cases = [*self.always.values(), *self.sometimes.values()]
        requests = sorted(set().union(*cases))
        lines = [f"{_digest(request)} {request}\n" for request in requests]
        for case in sorted(self.always):
            shown = [_digest(it) for it in sorted(self.always[case])]
            shown += [f"?{_digest(it)}" for it in sorted(self.sometimes[case])]
            lines.append(f"case {case}\n  {' '.join(shown)}\n")
        path.write_text(_HEAD.format(path.stem) + "".join(lines))

    @classmethod
    def read(cls, path: Path) -> Recording:
        """The inverse of `write`."""
        found, case = cls(), ""
        requests: dict[str, str] = {}
        for line in path.read_text().splitlines()[1:]:
            word, _, rest = line.partition(" ")
            if word == "case":
                case = rest
            elif word:
                requests[word] = rest
            else:
                digests = rest.split()
                found.always[case] = {requests[one] for one in digests if one[0] != "?"}
                found.sometimes[case] = {requests[one[1:]] for one in digests if one[0] == "?"}
        return found


def _kind(request: str) -> str:
    return _NAMES.sub("", request)


def _digest(request: str) -> str:
    return sha1(request.encode()).hexdigest()[:7]


def read_run(folder: Path) -> Cases:
    """What the plugin wrote in one run, from all its processes."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return {case: set(requests) for case, requests in map(json.loads, lines)}


def merged(runs: Iterable[Cases]) -> Recording:
    """A recording of several runs."""
    made = Recording({_ANY: set()}, {_ANY: set()})
    for run in runs:
        for case, requests in run.items():
            first = {request for request in requests if _FIRST.search(request)}
            rest = requests - first
            every = made.always.setdefault(case, rest)
            made.always[case] = every & rest
            made.sometimes[case] = made.sometimes.get(case, set()) | (every ^ rest)
            made.sometimes[_ANY] |= first
    return made


def differences(recording: Recording, run: Cases, wanted: Iterable[str]) -> dict[str, set[str]]:
    """By case: the lines of a diff. What is said of no case in particular comes under ""."""
    renamed = _renamed_texts(recording, run)
    found = {"": {f"{old} is {new} now" for old, new in renamed.items()}}
    for case in wanted:
        if case not in run:
            found[case] = {"did not run, or failed"}
    timed = recording.timed
    for case, requests in run.items():
        always = {_rename(it, renamed) for it in recording.always.get(case, ()) if it not in timed}
        may_be = recording.sometimes.get(case, set()) | timed
        sometimes = {_rename(it, renamed) for it in may_be}
        found[case] = {f"- {it}" for it in always - requests}
        found[case] |= {f"+ {it}" for it in requests - always - sometimes}
    return {case: lines for case, lines in found.items() if lines}


def unseen(recording: Recording, run: Cases, wanted: Iterable[str]) -> set[str]:
    """What depends on timing, and was sent in none of the several cases that always sent it."""
    sent = Counter(it for case in wanted for it in recording.always[case] & recording.timed)
    renamed = _renamed_texts(recording, run)
    seen = {_sort(request) for requests in run.values() for request in requests}
    expected = [it for it, cases in sent.items() if cases >= _SEVERAL]
    return {f"- {it}" for it in expected if _sort(_rename(it, renamed)) not in seen}


def _sort(request: str) -> str:
    # Which of several contenders wins decides on a number.
    return re.sub(r"(?<= )\d+(?= |$)", "0", _kind(request))


def _rename(request: str, renamed: dict[str, str]) -> str:
    return _TEXT.sub(lambda found: renamed.get(found[0], found[0]), request)


def _renamed_texts(recording: Recording, run: Cases) -> dict[str, str]:
    """The texts of the recording that changed: each new one is used as its old one was."""
    cases = [case for case in run if case in recording.always]
    before = _uses(
        it for case in cases for it in recording.always[case] | recording.sometimes[case]
    )
    after = _uses(it for case in cases for it in run[case])
    renamed: dict[str, str] = {}
    for new in sorted(after.keys() - before.keys()):
        gone = before.keys() - after.keys() - renamed.keys()
        best = max(sorted(gone), key=lambda old: len(before[old] & after[new]), default=None)
        if best is not None and before[best] & after[new]:
            renamed[best] = new
    return renamed


def _uses(requests: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for request in requests:
        for text in _TEXT.findall(request):
            found.setdefault(text, set()).add(_TEXT.sub("<text>", request))
    return found


def thin(recording: Recording, most: int = 40) -> list[str]:
    """Few cases that together show nearly every kind of request, of those without restarts."""
    suite = min((case.split()[0] for case in recording.always if case != _ANY), key=len)
    left = {
        case: {_kind(request) for request in requests}
        for case, requests in recording.always.items()
        if case.split()[0] == suite
    }
    chosen: list[str] = []
    missing: set[str] = set().union(*left.values())
    while missing and len(chosen) < most:
        best = max(sorted(left), key=lambda case: len(left[case] & missing))
        chosen.append(best)
        missing -= left.pop(best)
    return chosen
