"""What the workers wrote: never two at once, and terms that only grow.

Where several may hold a name: never more than two, never a writer beside another, no term twice.

A worker takes a file lock that all it starts inherits, and the kernel drops it with the last of
them; whoever finds it taken says so. Nothing here asks the product what it believes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sight:
    """What became of one fleet; terms in the order in which their workers began."""

    terms: tuple[int, ...]
    overlaps: int
    together: tuple[str, ...] = ()
    """For how many seconds each overlap was seen."""

    @property
    def wrong(self) -> str:
        """What broke a rule; empty: nothing did."""
        if self.overlaps:
            return f"{self.overlaps} overlap(s), together for {', '.join(self.together)} s"
        return "" if self.terms == tuple(sorted(set(self.terms))) else f"terms {self.terms}"


def look(folder: Path, *, shared: bool = False) -> Sight:
    """Read the log of a fleet. `shared`: those who work at once begin in any order."""
    lines = entries(folder)
    terms = tuple(int(line[1]) for line in lines if line[0] == "begin")
    terms = tuple(sorted(terms)) if shared else terms
    together = tuple(line[1] for line in lines if line[0] == "together")
    return Sight(terms, sum(line[0] == "overlap" for line in lines), together)


def leader(folder: Path) -> str:
    """The holder whose worker began last; empty before the first one."""
    begun = [line[2] for line in entries(folder) if line[0] == "begin"]
    return begun[-1] if begun else ""


def entries(folder: Path) -> list[list[str]]:
    path = folder / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def worker_lives(folder: Path) -> bool:
    """Whether any process of any worker lives; asks the kernel, and holds nothing meanwhile."""
    inodes = {str(place.stat().st_ino) for place in folder.glob("judge*")}
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    # A line: number, kind, mode, access, process, device and inode, range; "->" waits for one.
    return any(line[1] == "FLOCK" and line[5].rpartition(":")[2] in inodes for line in locks)
