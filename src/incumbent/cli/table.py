"""Commands and options as data: the parser, the environment and the messages come from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["COMMANDS", "FLAGS", "GLOBAL", "PREFIX", "SETTINGS", "VARIABLES", "Command", "Option"]

PREFIX: Final = "INCUMBENT_"

SETTINGS: Final = frozenset(
    (
        *("store", "namespace", "holder", "json", "quiet", "verbose"),
        *("ttl", "grace", "isolate", "share_store", "busy_exit_code"),
        *("listen", "token_file"),
        *("drain", "max_runs"),
    )
)
"""Options that may come from the environment: what a deployment says once for all its commands.

No option is among them unless it is written here. What is about one NAME, or one command line, is
not: left in the environment of a container it would change what every other command there means.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. Without a `metavar` it is a switch."""

    flags: tuple[str, ...]
    help: str
    metavar: str = ""

    @property
    def dest(self) -> str:
        """Its name in the program: that of its long flag."""
        return self.flags[-1].removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that stands for it, if it is one of SETTINGS."""
        return PREFIX + self.dest.upper()


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `name` is "NAME", "[NAME]", "FILE" or nothing; `module` is in `cli.commands`."""

    help: str
    module: str
    name: str = ""
    options: tuple[Option, ...] = ()
    runs: bool = False
    """Whether `-- CMD...` follows."""

    @property
    def acts(self) -> bool:
        """Whether work runs under leases of it."""
        return self.runs or self.module == "cron"


_STORE = Option(("-s", "--store"), "where leases are: sqlite: (default), redis://host", "URL")
_NAMESPACE = Option(("-N", "--namespace"), "keeps the names of one fleet apart (default)", "NS")
_JSON = Option(("--json",), "answer in JSON, for programs")
_QUIET = Option(("-q", "--quiet"), "no hints and no warnings")
_VERBOSE = Option(("-v", "--verbose"), "say what happens")

GLOBAL: Final = (_STORE, _NAMESPACE, _JSON, _QUIET, _VERBOSE)

_TTL = Option(("--ttl",), "the time to detect a crash (15s); it renews itself", "DUR")
_GRACE = Option(("--grace",), "between TERM and KILL (min(5s, ttl/3))", "DUR")
_REASON = Option(("--reason",), "why, for those who look later", "TEXT")
_AT_MOST_FOR = Option(("--at-most-for",), "stop CMD after this time (run: exit 124)", "DUR")
_AT_LEAST_FOR = Option(
    ("--at-least-for",), "keep the name closed until this time after the start", "DUR"
)
_HOLDER = Option(("--holder",), "who we are, for people (host:pid)", "ID")
_SHARE_STORE = Option(("--share-store",), "let CMD use the store; it is withheld otherwise")
_ISOLATE = Option(("--isolate",), "auto (default), pidns, container or pgroup", "HOW")

_RUN = (
    Option(("--wait",), "wait for the lease, for at most DUR if given; else exit 75", "[=DUR]"),
    Option(("--fair",), "with --wait: in the order of arrival"),
    _TTL,
    _GRACE,
    Option(("--once-per",), "at most one start in this time, by the store's clock", "DUR"),
    Option(("--slot",), "at most one start with this ID, such as a scheduled instant", "ID"),
    _AT_MOST_FOR,
    _AT_LEAST_FOR,
    _HOLDER,
    Option(("-E", "--busy-exit-code"), "instead of 75", "N"),
    _SHARE_STORE,
    _ISOLATE,
    Option(("--result-file",), "write how it ended to this file, as JSON", "F"),
)
_CAMPAIGN = (
    Option(("--restart",), "stand again after a term: always (default), on-failure, never", "WHEN"),
    Option(("--fair",), "candidates lead in the order in which they came"),
    _TTL,
    _GRACE,
    _AT_MOST_FOR,
    _AT_LEAST_FOR,
    _HOLDER,
    _SHARE_STORE,
    _ISOLATE,
)
_HEALTH = (
    Option(("--listen",), "serve /healthz, /readyz, /leader, /leaderz, /metrics", "HOST:PORT"),
    Option(("--token-file",), "the token of the pages; needed beyond the loopback address", "F"),
)
_WORK = (
    Option(("--workers",), "processes of this service", "N"),
    Option(("--holders",), "how many of them may hold at a time, in the whole fleet (1)", "M"),
)
_CRON = (
    Option(("--check",), "tell every problem of FILE, or the next runs; run nothing"),
    _TTL,
    _GRACE,
    _HOLDER,
    _SHARE_STORE,
    _ISOLATE,
    Option(
        ("--drain",), "after TERM, how long runs may go on before they are stopped (25s)", "DUR"
    ),
    Option(("--max-runs",), "how many runs at a time here; what is more waits (100)", "N"),
)
_SINCE = Option(("--since",), "only what began after: 2h, 2026-11-21T05:30Z", "WHEN")
_ALL = Option(("--all",), "every job of the namespace")
_TO = Option(("--to",), "the candidate that is to follow", "HOLDER")
_WATCH = Option(("--watch",), "again every second, until ^C")
_TIMEOUT = Option(("--timeout",), "give up with exit 75 after this time", "DUR")
_FIX = Option(
    ("--fix",), "first make the schema of this release in the store, or load its functions"
)
_AT = Option(("--at",), "about the slot of this instant: 05:30, 2026-11-21T05:30Z", "WHEN")
_FORCE = Option(("--force",), "remove the record at once: the holder may go on for its ttl")

COMMANDS: Final = {
    "run": Command("take the lease, run CMD once, give it back", "run", "NAME", _RUN, runs=True),
    "lead": Command(
        "campaign for ever; CMD runs during each term",
        "lead",
        "NAME",
        (*_CAMPAIGN, *_HEALTH),
        runs=True,
    ),
    "work": Command(
        "N processes of a service, M of them hold at a time",
        "work",
        "NAME",
        (*_WORK, *_CAMPAIGN),
        runs=True,
    ),
    "cron": Command(
        "jobs by the clock, from a crontab or a job file (TOML)", "cron", "FILE", _CRON
    ),
    "status": Command("who holds what", "look", "[NAME]", (_WATCH,)),
    "wait": Command("wait until NAME is free", "look", "NAME", (_TIMEOUT,)),
    "break": Command("ask the holder to stop", "steering", "NAME", (_FORCE, _REASON)),
    "resign": Command("ask the holder to hand over", "steering", "NAME", (_TO, _REASON)),
    "pause": Command(
        "end the term, and let nobody hold NAME", "steering", "[NAME]", (_REASON, _ALL)
    ),
    "unpause": Command("let NAME be held again", "steering", "[NAME]", (_ALL,)),
    "why": Command("why NAME is held, or is not; why a job did not run", "why", "NAME", (_AT,)),
    "history": Command(
        "who held NAME when; what became of a job's slots", "history", "NAME", (_SINCE,)
    ),
    "jobs": Command("the jobs of the fleet: when next, how last, who", "jobs"),
    "trigger": Command("run a job once now, somewhere", "trigger", "NAME", (_REASON, _TIMEOUT)),
    "doctor": Command(
        "what the store promises, and whether it fits", "doctor", "", (_TTL, _GRACE, _FIX)
    ),
    "demo": Command("faults on real processes, judged from outside, in 20 s", "demo"),
}

_OTHER: Final = ("STORE_FILE", "STORE_PASSWORD_FILE")
# What an incumbent gives to its child, which may be one too.
_OF_A_PARENT: Final = (
    *(f"LEASE_{what}" for what in ("NAME", "HOLDER", "TERM", "SLOT", "SOCKET", "MARK")),
    *(f"RUN_{what}" for what in ("JOB", "SLOT", "STATE", "CODE", "WHY")),
)

VARIABLES: Final = frozenset(
    PREFIX + name for name in (*map(str.upper, SETTINGS), *_OTHER, *_OF_A_PARENT)
)
FLAGS: Final = {
    option.variable: option.flags[-1]
    for command in COMMANDS.values()
    for option in command.options
    if option.dest not in SETTINGS
}
"""What would be the variable of an option that is none of SETTINGS, and its flag."""
