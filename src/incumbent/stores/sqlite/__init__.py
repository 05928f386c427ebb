"""`sqlite:` leases among the processes, threads and loops of one host, in one file.

`engine` reads the URL, and looks at the file for `doctor`; `host` knows the clock, the boot and the
file system. `schema` (tables and statements) is pure; `rows` says what a row means. `connection`
opens the file, `file` runs transactions and survives forks. `core` has the operations, each tried
once, and around them those that try again, blocking or in an event loop.

Importing this package loads no driver; `sqlite3` comes with the first operation.
"""

from incumbent.stores.sqlite.engine import SqliteEngine, open_sqlite

__all__ = ["SqliteEngine", "open_sqlite"]
