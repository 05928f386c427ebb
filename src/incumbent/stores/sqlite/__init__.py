"""`sqlite:` leases among the processes, threads and loops of one host, in one file.

Importing this package loads no driver; `sqlite3` comes with the first operation.
"""

from incumbent.stores.sqlite.engine import SqliteEngine, open_sqlite

__all__ = ["SqliteEngine", "open_sqlite"]
