"""The layers of the package as data, lowest first: a folder is one layer. Place new modules here.

A module may import its own layer and the ones below, at run time and for types alike. A name stands
for the module and everything under it.
"""

from __future__ import annotations

# What would make a decision depend on when, where or in which thread it is taken.
WORLD = frozenset(
    {
        *("time", "random", "secrets", "os", "signal", "sched"),
        *("threading", "asyncio", "concurrent", "multiprocessing", "queue", "subprocess"),
        *("socket", "ssl", "select", "selectors", "sqlite3", "redis", "hiredis"),
        *("psycopg", "pymysql", "sqlalchemy"),
    }
)

LAYERS: dict[str, tuple[str, ...]] = {
    "values": ("printable", "errors", "durations", "model", "meters"),
    "decisions": ("lease", "policy", "election", "rules"),
    "system": ("clock", "chance", "interrupts", "unpatched"),
    "stores": ("net", "stores", "fencing"),
    "protocols": ("protocol",),
    "drivers": ("runtime",),
    "leases": ("locks",),
    "health": ("metrics", "otel", "serve", "notify"),
    "work": ("supervise", "cron"),
    "facades": ("decorators", "compat", "tooz_driver"),
    "outermost": ("page", "testing", "cli", "demo", "__main__"),
}

# `import incumbent` brings the facades, so importing the package itself is as high as they are.
ROOT = "facades"

# These decide, and import nothing of the world, and of the package only each other.
PURE = (
    *LAYERS["values"],
    *LAYERS["decisions"],
    *("stores.base", "stores.findings", "stores.names", "stores.plan"),
    *("stores.registers", "stores.deciding"),
    "protocol",
    "supervise.plan",
    "notify.receivers",
    *("cron.fields", "cron.schedule", "cron.spec", "cron.crontab", "cron.jobfile"),
    *("cron.variables", "cron.agenda", "cron.folds", "cron.ledger", "cron.once", "cron.judging"),
)

# A driver is imported by its own store and by nobody else; the demo plays a foreign store.
DRIVERS = {
    "redis": ("compat",),
    "hiredis": ("stores.redis", "stores.quorum"),
    "sqlite3": ("stores.sqlite", "demo", "fencing.http"),
    "psycopg": ("stores.postgresql",),
    "pymysql": ("stores.mysql",),
    "yaml": ("stores.kubernetes",),
    "sqlalchemy": ("stores.postgresql", "fencing.sql"),
    "tooz": ("tooz_driver",),
}

# Connections to stores are made, and waited for, in `net` only; libpq opens PostgreSQL's.
SOCKETS = frozenset({"socket", "select", "selectors", "ssl"})
TRANSPORTS = frozenset(
    {
        *("create_connection", "create_unix_connection", "open_connection"),
        *("open_unix_connection", "add_reader", "add_writer", "sock_connect", "sock_recv"),
    }
)
# These make a TLS context of a user's settings, and open nothing.
SOCKETS_OUTSIDE_NET = {"stores.etcd.site": {"ssl"}}

# The vocabulary has one word for each thing; these would be a second one.
AVOIDED = frozenset({"unlock", "obtain", "refresh", "watchdog", "resource", "owner"})
# What a guard writes to is the resource, in the field's words; elsewhere it would mean the name.
# The interfaces of others have their words.
SPOKEN = {"fencing": {"resource"}, "compat": {"owner"}, "tooz_driver": {"owner"}}
# Where users look, a token is a fencing token; the store contract says `token` for short.
NO_BARE_TOKEN = ("locks.lock", "errors")

# Documented by the standard library, in spite of the underscore.
PUBLIC_ALL_THE_SAME = frozenset({"_asdict", "_exit", "_fields", "_make", "_replace"})
# `x._y` of another package: a library's, or a test bench that steps a keeper's thread itself.
PEEKING = {
    # Faces of the same leases.
    "compat": {"_claim", "_holdings", "_wanted"},
    "decorators": {"_cancel_exit", "_claim", "_link"},
    "testing.plugin": {
        *("_by_object", "_by_url", "_entries", "_claim", "_keepers", "_plan_sleep", "_state"),
    },
}

# Around what talks to a store, `except` of these may meet what a signal handler raised instead.
WIDE = frozenset({"OSError", "TimeoutError", "ConnectionError", "RuntimeError", "Exception"})
# These tell it apart (incumbent.interrupts), themselves or where they pass the error to.
TELL_APART = frozenset(
    {
        *("raise_if_from_signal", "is_from_signal", "ProviderFailed"),
        *("_outlast", "_finish_slow", "_fall_back"),
    }
)
# Where no handler runs, or what it raises reaches its caller all the same.
NO_HANDLER = {
    "net.aiowire": {"work": "a thread of its own"},
    "runtime.keeper": {
        "_pay_one": "the keeper's thread",
        "drain": "raised once the other debts were tried",
        "renewed_claims": "reads a set",
    },
    "runtime.link": {"async_port": "asks for the loop", "_find_port": "asks for the loop"},
    "stores.sqlite.engine": {"default_path": "asks for the home folder"},
    "stores.sqlite.file": {"after_fork": "releases a lock"},
    "stores.turns": {"first": "reads a dictionary"},
}

LONGEST_FILE = 600
LONGEST_FUNCTION = 50


def within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def height_of(module: str) -> int:
    """The height of a module's layer; `len(LAYERS)` if it has none."""
    if not module:
        return list(LAYERS).index(ROOT)
    for height, places in enumerate(LAYERS.values()):
        if any(within(module, place) for place in places):
            return height
    return len(LAYERS)


def layer_of(module: str) -> str:
    """The name of a module's layer."""
    return [*LAYERS, "none"][height_of(module)]
