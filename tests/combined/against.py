"""`python -m tests.combined.against COMMIT [NAME ...]`: do the plans find what was wrong then?

Plays the known plans on the code of that commit, with the checker and the generator of today. Exit
code 1 if a plan breaks nothing: then it is no proof.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.combined.plan import to_text
from tests.combined.regressions import REGRESSIONS, Regression
from tests.support.servers import ROOT

__all__ = ["finds", "has_history", "tree_of"]

_OURS = ("tests/history", "tests/combined", "tests/sim")
_WORDS = {
    r"\bLeaseState\b": "State",
    r"\bLeaseRequest\b": "Wanted",
    r"\bClaim\b": "Held",
    r"\bheld\.id\b": "held.claim",
    r"\bwanted\.unqueued\b": "wanted.ask",
    r"\blog_outage\b": "tell_outage",
    r"\bends_by_at_most_for\b": "bounded",
    r"\bmachine\.note_leaving\b": "machine.left",
    r"\bmachine\.note_(\w+)\b": r"machine.\1",
    r"\btakes_in_doubt\b": "unsure",
    r"(?<=_NAME\)\))\.lease\b": ".main",
    r"\bowe\(self, debt\b": "hand_over(self, debt",
    r"\bkeeper\.owe\b": "keeper.hand_over",
    r"\bowe=self\.port\.owe\b": "hand_over=self.port.hand_over",
    r"\bowe=lambda debt\b": "hand_over=lambda debt",
}
_THEN = {
    "incumbent.protocol.claim": "incumbent._core.held",
    "incumbent.protocol": "incumbent._core",
    "redis.records import Naming": "redis.names import Naming",
    "incumbent.durations import backoff_delay": "incumbent.backoff import backoff_delay",
    "policy.Policy(self.ttl": "policy.make_policy(self.ttl",
    "Wanted(KEY, ask, ask,": "Wanted(KEY, ask,",
    "Wanted(wanted.key, ask, ask,": "Wanted(wanted.key, ask,",
    "quorum.nodes import Quorum": "quorum.group import Quorum\nfrom incumbent.stores.quorum.rounds"
    " import Rounds",
    "DialingPanel(panel.process, panel.machines, self.quorum)": "DialingPanel("
    "panel.process, panel.machines, clock, revoke=dialect.revoke)\n"
    "        self.rounds = Rounds(self.quorum)",
    "from incumbent.model import UNLIMITED": "UNLIMITED = 0",
    ", lock_delay=delay)": ")",
    "policy.kept_for": "policy.ttl",
    "self._world.policy.lock_delay": "0.0",
    "held.wanted.ask.permits": "None",
    "theirs.wanted.ask.permits": "None",
    "ask.permits": "None",
    "from incumbent.locks.several import MultiLeaseHandle": "MultiLeaseHandle = object",
    "from tests.sim.several import Several": "Several = object",
    "from incumbent.stores.plan import one_by_one\n": "",
    "incumbent.rules.notices": "incumbent.stores.notices",
    "    PLAIN,\n": "",
    "    Parting,\n": "",
    "*, parting: Parting = PLAIN": "**parting",
    "self.give(*each, PLAIN)": "self.give(*each, {})",
    "None, self.now(), self.wall())": "None, self.now(), self.wall(), closed_for=0.0, slot=None)",
    "self.wall(), parting)": "self.wall(), **parting)",
    "parting.closed_for": "parting.get('closed_for', 0.0)",
    "from incumbent.stores.base import NO_LIMITS, Answers, Give, Take": "NO_LIMITS = None\n"
    "Answers = list\nGive = Take = object",
    "incumbent.stores.memory import MemoryTable": "incumbent.stores.table import MemoryTable",
    "machine.sent_at": "machine._sent",
    "from incumbent.stores.base import Give, Take": "Give = Take = object",
}
"""What is used of the product by another name than before there was `protocol/`; words first."""
_CLAIMANT = Path("tests/quorum/claimant.py")
_HOLDS = re.compile(r"    async def _hold.*?(?=    async def _give)", re.DOTALL)
_CLAIMANT_THEN = {
    "self._ask = Ask(TTL, process.name)": "self.ttl, self.beside = TTL, False",
    "self._ask,": "Ask(self.ttl, self.process.name),",
    "renew(self.panel,": "upkeep.renew(self.quorum, self.panel,",
}
_WITHIN = 600.0


def has_history(commit: str) -> bool:
    """Whether this checkout can tell what a commit was: a shallow clone and an archive cannot."""
    asked = ["git", "cat-file", "-e", f"{commit}^{{tree}}"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit, for as long as the block lasts."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        said = archive.stderr.decode().strip()
        raise RuntimeError(f"commit {commit} cannot be had; this needs a full clone: {said}")
    with tempfile.TemporaryDirectory(prefix="incumbent-commit-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder)


@contextmanager
def with_our_checker(commit: str) -> Iterator[Path]:
    """The tree of a commit, with the checker, the generator and the simulator of today."""
    with tree_of(commit) as tree:
        for name in _OURS:
            shutil.rmtree(tree / name, ignore_errors=True)
            shutil.copytree(ROOT / name, tree / name)
        if not (tree / "src" / "incumbent" / "protocol").exists():
            _speak_as_then(tree)
        servers = ROOT / ".servers"
        if servers.exists():
            (tree / ".servers").symlink_to(servers)
        yield tree


def _speak_as_then(tree: Path) -> None:
    for path in (path for name in _OURS for path in (tree / name).rglob("*.py")):
        path.write_text(_replaced(path.read_text(), _THEN))
    # The claimant of then takes and gives; it holds, and tells the judge, as that of today does.
    (holds,) = _HOLDS.findall((ROOT / _CLAIMANT).read_text())
    claimant = _HOLDS.sub(lambda _: holds, (tree / _CLAIMANT).read_text())
    (tree / _CLAIMANT).write_text(_replaced(claimant, _CLAIMANT_THEN))


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for now, then in _WORDS.items():
        text = re.sub(now, then, text)
    for now, then in words.items():
        text = text.replace(now, then)
    return text


def finds(tree: Path, known: Regression) -> str:
    """What the plan breaks there; empty: nothing that it should."""
    command = [sys.executable, "-m", "tests.combined", "--world", known.world]
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    for _ in range(known.tries):
        said = subprocess.run(
            [*command, "--plan", to_text(known.plan)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=_WITHIN,
            check=False,
        )
        broken = [line.strip() for line in said.stdout.splitlines() if f"  {known.rule}:" in line]
        if broken:
            return broken[0]
        if said.returncode and not broken and "Traceback" in said.stderr:
            raise RuntimeError(said.stderr)
    return ""


def main(asked: Sequence[str]) -> int:
    """See the module."""
    commit, *names = asked
    code = 0
    with with_our_checker(commit) as tree:
        for known in REGRESSIONS:
            if names and not any(name in (known.world, known.name) for name in names):
                continue
            found = finds(tree, known)
            code = code or int(not found)
            sys.stdout.write(f"{known.world}: {known.name}\n  {found or 'NOT FOUND'}\n")
            sys.stdout.flush()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
