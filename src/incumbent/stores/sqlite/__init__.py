"""`sqlite:`, leases among the processes, threads and loops of one host, in one file.

`engine` reads the URL, and checks the file for `doctor`; `host` knows the clock, the boot and the
file system. `schema` (tables and statements) is pure; `rows` interprets rows. `connection` opens
the file, `file` runs transactions and survives forks. `core` has the operations: a layer that tries
each once, and around it the stores that try again, blocking or in an event loop.

Importing this package loads no driver; `sqlite3` comes with the first operation.
"""

from incumbent.stores.sqlite.engine import SqliteEngine, open_sqlite

__all__ = ["SqliteEngine", "open_sqlite"]
