"""`python -m tests.recorded [compare|record] [ENGINE...] [-n N] [--runs N] [--thin]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.recorded import plugin
from tests.recorded.recording import Cases, Recording, differences, merged, read_run, thin, unseen

__all__ = ["ENGINES", "compare", "main", "record", "run"]

ENGINES = ("etcd", "kubernetes", "postgresql", "quorum", "redis", "sqlite")
HERE = Path(__file__).parent
_AGAIN = 2


def main(args: list[str] | None = None) -> int:
    """Exit code 0 if the stores see what is recorded, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description=__doc__)
    parser.add_argument("what", nargs="?", default="compare", choices=["compare", "record"])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("-n", default="2", help="processes that run cases (2)")
    parser.add_argument("--runs", type=int, default=3, help="of which a recording is made (3)")
    parser.add_argument("--thin", action="store_true", help="only cases that show all requests")
    asked = parser.parse_args(args)
    if unknown := set(asked.engines) - set(ENGINES):
        parser.error(f"no recording of {', '.join(sorted(unknown))}")
    different = False
    for engine in asked.engines or ENGINES:
        if asked.what == "record":
            record(engine, asked.n, asked.runs)
            continue
        found = compare(engine, asked.n, only_thin=asked.thin)
        different |= bool(found)
        word = "other requests than recorded" if found else "the requests that are recorded"
        sys.stdout.write("\n".join([f"{engine}: {word}", *found, ""]))
    return int(different)


def path_of(engine: str) -> Path:
    """Where its recording is."""
    return HERE / f"{engine}.txt"


def record(engine: str, processes: str, runs: int) -> None:
    """Renew the recording of an engine."""
    done = [run(engine, processes) for _ in range(runs)]
    cases = set().union(*done)
    merged(done).write(path_of(engine))
    sys.stdout.write(f"{engine}: {len(cases)} cases recorded\n")
    for case in sorted(cases):
        if failed := sum(case not in one for one in done):
            sys.stdout.write(f"  case {case}: failed in {failed} of {runs} runs\n")


def compare(engine: str, processes: str, *, only_thin: bool) -> list[str]:
    """The lines of a diff: what an engine's cases send otherwise than recorded, time and again."""
    recording = Recording.read(path_of(engine))
    wanted = thin(recording) if only_thin else recording.cases
    done = run(engine, processes, wanted if only_thin else [])
    found = differences(recording, done, wanted)
    never = unseen(recording, done, wanted)
    for _ in range(_AGAIN):
        # What timing has changed is not the same the next time.
        cases = [case for case in found if case]
        if not cases:
            break
        again = differences(recording, run(engine, processes, cases), cases)
        found = {case: both for case in found if (both := found[case] & again.get(case, set()))}
    lines = sorted(never)
    for case in sorted(found):
        lines += [f"case {case}"] if case else []
        lines += [f"  {line}" for line in sorted(found[case])]
    return lines


def run(engine: str, processes: str, only: list[str] | None = None) -> Cases:
    """Run the contract of an engine once: what the cases sent that passed."""
    with TemporaryDirectory() as folder:
        environment = os.environ | {plugin.ENGINE: engine, plugin.FOLDER: folder}
        environment[plugin.ONLY] = "\n".join(only or [])
        command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "-p"]
        command += [plugin.__name__, f"tests/contract/test_{engine}.py"]
        root = HERE.parents[1]
        subprocess.run(command, env=environment, cwd=root, stdout=sys.stderr, check=False)
        return read_run(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
