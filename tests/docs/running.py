"""Runs the blocks of a page in order, in a folder and an environment that are new.

Only addresses change: a server of the test stands in for `localhost:6379`, a free port for 8000.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.docs.blocks import ROOT, Block
from tests.support.servers import SERVERS

PREAMBLE = """\
set -eEuo pipefail
trap 'echo "line $LINENO: $BASH_COMMAND: exit $?" >&2' ERR
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
pip() { printf '%s\\n' "$*" >>pip.asked; }
"""

PATIENT = """\
#!/usr/bin/env bash
until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.05; done
exec {command} "$@"
"""
"""In place of `incumbent`, where a server of the page has to answer before."""

STARTS = {"sleep 2 ": "sleep 8 ", "sleep 2\n": "sleep 8\n"}
"""A busy machine starts what a page starts slowly."""


class Folder:
    """A checkout's examples, and nothing that another page left."""

    def __init__(self, path: Path, addresses: Mapping[str, str], port: int = 0) -> None:
        """`port`: where a server of the script has to answer before `incumbent` is called."""
        self.path = path
        self.addresses = dict(addresses)
        path.mkdir(exist_ok=True)
        for name in ("examples", "deploy"):
            shutil.copytree(ROOT / name, path / name)
        shutil.copy(ROOT / "README.md", path)
        for file in (path / "examples").glob("*.txt"):
            file.write_text(self.here(file.read_text()))
        (path / "home").mkdir()
        binaries = Path(sys.executable).parent
        if port:
            (path / "bin").mkdir()
            ours = path / "bin" / "incumbent"
            ours.write_text(PATIENT.format(port=port, command=binaries / "incumbent"))
            ours.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if name in ("LANG", "TMPDIR")}
        self.environment = kept | {
            "HOME": str(path / "home"),
            "PATH": f"{path / 'bin'}:{binaries}:{SERVERS}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "examples" / "store_template" / "src"),
            "PYTHONWARNINGS": "error",
            "INCUMBENT_STORE": "sqlite:",  # the default, which a container has to name
        }

    def here(self, text: str) -> str:
        """The text with the addresses of this test."""
        for there, here in self.addresses.items():
            text = text.replace(there, here)
        return text

    def write(self, block: Block) -> None:
        file = self.path / block.argument
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.here(block.code))

    def shell(self, blocks: Iterable[Block], seconds: float = 90.0) -> str:
        """Run the blocks as one script; what they wrote. AssertionError if a command fails."""
        script = PREAMBLE + "\n".join(self.here(block.code) for block in blocks)
        return self._run(["bash", "-c", script], seconds)

    def python(self, blocks: Iterable[Block], before: str = "", seconds: float = 60.0) -> str:
        """Run the blocks as one program, `await` at the top included; what they wrote."""
        parts = [before, *(f"\n# line {b.line}\n" + self.here(b.code) for b in blocks)]
        (self.path / "blocks.py").write_text("\n".join(parts))
        return self._run([sys.executable, "-c", _AWAITING], seconds)

    def under(self, block: Block) -> str:
        """Run the block as the command of `incumbent run` or `lead`."""
        code = self.here(block.code)
        inner = ["bash", "-ec", code] if block.language == "sh" else [sys.executable, "-c", code]
        return self._run([*block.argument.split(), "--", *inner], 60.0)

    def _run(self, command: list[str], seconds: float) -> str:
        running = subprocess.Popen(
            command,
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, complained = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            said, complained = running.communicate()
        assert running.returncode == 0, f"{said}\n{complained}"
        return said


_AWAITING = """\
import ast, asyncio, inspect, pathlib, sys, types
sys.path.insert(0, ".")
module = types.ModuleType("blocks")
sys.modules["blocks"] = module
module.__file__ = "blocks.py"
text = pathlib.Path("blocks.py").read_text()
code = compile(text, "blocks.py", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
if code.co_flags & inspect.CO_COROUTINE:
    asyncio.run(eval(code, module.__dict__))
else:
    exec(code, module.__dict__)
"""
