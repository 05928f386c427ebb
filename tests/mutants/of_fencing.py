"""Mutations of the guards at the resource."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_m = in_area("fencing")

MUTATIONS: tuple[Mutation, ...] = (
    _m(
        "sql: an older token passes",
        "fencing/sql.py",
        "WHERE resource = ? AND token <= ?",
        "WHERE resource = ? AND 0 <= ?",
        "tests/fencing/test_sql.py::test_a_token_passes_if_none_before_it_was_larger",
    ),
    _m(
        "sql: in autocommit it seems to protect",
        "fencing/sql.py",
        "    if not _in_transaction(driver):",
        "    if False:",
        "tests/fencing/test_sql.py",
    ),
    _m(
        "redis: tokens are compared as text alone",
        "fencing/guards.py",
        "(#seen > #token or (#seen == #token and seen > token))",
        "seen > token",
        "tests/fencing/test_redis.py",
    ),
    _m(
        "redis: a lease that is over writes",
        "fencing/guards.py",
        "    lease.check()\n    if not commands",
        "    if not commands",
        "tests/fencing/test_redis.py::test_a_lease_that_is_over_writes_nothing",
    ),
    _m(
        "file: what was seen is remembered after the write",
        "fencing/guards.py",
        "        if token > seen:",
        "        if False:",
        "tests/fencing/test_files.py",
    ),
    _m(
        "http: a token that is too old is passed on",
        "fencing/http.py",
        '            return _HttpRefusal("409 Conflict", str(stale))',
        "            return token",
        "tests/fencing/test_http.py",
    ),
    _m(
        "what is no number passes as a token",
        "fencing/guards.py",
        "    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < 2**63:\n",
        "    if isinstance(token, bool):\n",
        "tests/top/test_numbers.py",
    ),
)
