"""Environments for libraries that are not installed beside ours, each made once."""

from __future__ import annotations

import fcntl
import shutil
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.release.installed import ROOT, run

WANTED: Final[dict[str, tuple[str, ...]]] = {
    "today": (
        *("-c", str(ROOT / "constraints.txt"), "etcd3gw", "msgpack", "portalocker", "redis"),
        *("tooz", "kubernetes==37.0.2"),
    ),
    # celery refuses the dateutil that the others use.
    "jobs": ("celery==5.7.0", "celery-once==3.0.1", "redis==8.1.0", "single-beat==0.6.3"),
    # Both have had no release for years, and need these versions.
    "old": (
        *("aioredis-lock==0.1.0", "aioredis==1.3.1"),
        *("etcd3==0.12.0", "protobuf==3.20.3", "tenacity==6.3.1"),
    ),
}
FOLDER: Final = ROOT / ".venv" / "others"


@cache
def bin_of(name: str) -> Path:
    """The folder of the programs of that environment."""
    wanted = WANTED[name]
    made = sha256("\n".join((sys.version, *wanted)).encode()).hexdigest()[:12]
    folder = FOLDER / f"{name}-{made}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            for earlier in FOLDER.glob(f"{name}-*"):
                shutil.rmtree(earlier)
            run(sys.executable, "-m", "venv", folder)
            run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *wanted)
            (folder / "made").touch()
    return folder / "bin"
