"""A recipe's files as its page has them, and the programs of its framework.

The frameworks have an environment of their own (`make .venv/.cookbook`): each pins what the others,
and the test suite, have in other versions.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.cron.fleet import descendants
from tests.docs.blocks import ROOT, blocks_of
from tests.support.servers import free_port
from tests.support.waiting import eventually

BINARIES = Path(sys.prefix) / "cookbook" / "bin"
PAGES = ROOT / "docs" / "cookbook"
ENDS_WITHIN = 60.0


class CookbookMissing(RuntimeError):
    """The frameworks are not installed."""


class Program:
    """One that runs, in a session of its own; what it wrote is in a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, port: int) -> None:
        self.process = process
        self.output = output
        self.port = port

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def terminate(self) -> int:
        """Ask it to end, as a service manager does; its exit code."""
        self.process.terminate()
        return self.process.wait(ENDS_WITHIN)

    def kill(self) -> None:
        """End it with all that it started, also in sessions of their own."""
        for pid in (*descendants(self.pid), self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and body of an answer by HTTP; 0 while nobody listens."""
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urlopen(Request(url, method=method), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError:
            return 0, ""


class Recipe:
    """The files of one page in a folder, and what runs there."""

    def __init__(self, page: str, folder: Path, binaries: Path, **settings: str) -> None:
        """`settings`: variables of the programs' environment."""
        if not binaries.exists():
            raise CookbookMissing("no frameworks in this environment: run `make .venv/.cookbook`")
        self.folder = folder
        self.binaries = binaries
        self.settings = settings
        self.programs: list[Program] = []
        for block in blocks_of(PAGES / f"{page}.md"):
            if block.directive == "file":
                file = folder / block.argument
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.code)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        return kept | {
            "HOME": str(self.folder),
            "PATH": f"{self.binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            **self.settings,
        }

    def start(self, *words: str) -> Program:
        """Start a program of the environment; PORT in a word is a free port."""
        port = free_port()
        output = self.folder / f"output-{len(self.programs)}"
        with output.open("wb") as file:
            process = self._popen([word.replace("PORT", str(port)) for word in words], file)
        self.programs.append(Program(process, output, port))
        return self.programs[-1]

    def serve(self, *words: str, at: str = "/healthz") -> Program:
        """Start a program, and wait until it answers by HTTP."""
        program = self.start(*words)
        eventually(lambda: program.ask(at)[0] == 200 or program.process.poll() is not None)
        assert program.process.poll() is None, program.said
        return program

    def run(self, *words: str) -> str:
        """What a program wrote that ended with 0."""
        program = self.start(*words)
        assert program.process.wait(60) == 0, program.said
        return program.said

    def python(self, code: str) -> str:
        """What Python wrote that ran `code` beside the files."""
        return self.run("python", "-c", code)

    def _popen(self, words: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            words,
            executable=str(self.binaries / words[0]),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def end(self) -> None:
        """Kill what is left."""
        for program in self.programs:
            program.kill()
            # It may have ended before, and left others in its session.
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            # Shown where a test fails.
            sys.stdout.write(f"-- {program.process.args!r}\n{program.said[-4000:]}\n")


@contextmanager
def cooked(page: str, folder: Path, binaries: Path = BINARIES, **settings: str) -> Iterator[Recipe]:
    """The recipe of docs/cookbook/`page`.md; all that it started ends with the block."""
    recipe = Recipe(page, folder, binaries, **settings)
    try:
        yield recipe
    finally:
        recipe.end()
