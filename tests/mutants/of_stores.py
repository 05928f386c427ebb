"""Mutations of what speaks to the stores: dialects in Python, scripts in Lua, statements in SQL."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area


def _contract(engine: str, kind: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/contract/test_{engine}.py::{kind}::{name}" for name in names)


def _redis(*names: str) -> tuple[str, ...]:
    return _contract("redis", "TestRedis", *names)


def _sqlite(*names: str) -> tuple[str, ...]:
    return _contract("sqlite", "TestSqlite", *names)


def _postgresql(*names: str) -> tuple[str, ...]:
    return _contract("postgresql", "TestPostgresql", *names)


_REDIS = ("tests/stores/redis/test_dialect.py",)
_GIVEN_BACK = ("tests/stores/redis/test_given_back.py",)
_BALLOTS = ("tests/stores/quorum/test_ballots.py",)
_NODE = ("tests/quorum/test_node.py",)

_d = in_area("dialects")
_lua = in_area("Lua")
_sql = in_area("SQL")

MUTATIONS: tuple[Mutation, ...] = (
    _d(
        "redis: the answer to another's claim is a grant",
        "stores/redis/commands.py",
        'raise Mismatch("the answer is another claim\'s")',
        "pass",
        *_REDIS,
    ),
    _d(
        "redis: a repeated take counts for twice what is left",
        "stores/redis/commands.py",
        "first._replace(ttl=reply[1] / 1000)",
        "first._replace(ttl=reply[1] / 500)",
        *_REDIS,
    ),
    _d(
        "redis: gone counts as released",
        "stores/redis/commands.py",
        "return _RELEASED if reply else _GONE",
        "return _RELEASED",
        *_REDIS,
        *_redis("test_a_second_release_answers_gone"),
    ),
    _d(
        "redis: a guard by a claim guards nothing",
        "stores/redis/dialect.py",
        'return ("claim", held_by(claim, token))',
        'return ("none", "")',
        *_REDIS,
        *_redis("test_who_lost_the_lease_cannot_write_by_its_claim"),
    ),
    _d(
        "redis: a restarted server is trusted at once",
        "stores/restart.py",
        "return max(TTL_DEFAULT, ttl, *learnt) if named is None else named",
        "return ttl if named is None else named",
        "tests/stores/test_restart.py",
    ),
    _d(
        "redis: a grant that could not be given back was certainly none",
        "stores/redis/dialect.py",
        "if reply != 1:",
        "if reply is None:",
        *_GIVEN_BACK,
    ),
    _d(
        "redis: a longer ttl is granted though nobody could be told of it",
        "stores/redis/dialect.py",
        "raise met.problem",
        "pass",
        *_GIVEN_BACK,
    ),
    _d(
        "redis: data lost soon after a promotion leave tokens of the clock alone",
        "stores/redis/incarnation.py",
        "default=clock + _JUMP)",
        "default=0)",
        "tests/stores/redis/test_incarnation_pure.py",
    ),
    _d(
        "redis: the floors of promotions in a row add up",
        "stores/redis/incarnation.py",
        "return max(clock, floor + _GROWN)",
        "return max(clock, floor + _JUMP)",
        "tests/stores/redis/test_incarnation_pure.py",
    ),
    _d(
        "redis: an undoing that was never sent leaves nothing in doubt",
        "stores/redis/exchange.py",
        "error.sent = error.sent or begun or answers is not None",
        "pass",
        *_GIVEN_BACK,
    ),
    _d(
        "redis: records of the release before are read as if they were ours",
        "stores/redis/incarnation.py",
        "RECORD_FORMAT: Final = 2",
        "RECORD_FORMAT: Final = 1",
        "tests/formats/test_side_by_side.py::test_this_release_refuses_the_records_of_the_one_before_and_says_what_to_do[redis]",
    ),
    _lua(
        "redis: a look beside a take says that the server is a master as before",
        "stores/redis/take_looking.lua",
        "try('INFO', 'replication')",
        "'role:master'",
        "tests/stores/redis/test_incarnation.py::test_an_idle_connection_notices_a_switchover_that_left_the_marker_as_it_was",
    ),
    _d(
        "redis: a record of another version is read as a foreign client's",
        "stores/redis/reading.py",
        'check_format(raw or b"", commands.where, names.main)',
        "pass",
        "tests/stores/redis/test_records.py::test_a_record_of_another_version_is_read_by_nobody_and_left_alone",
    ),
    _d(
        "sentinel: no time in which the old master may go on unseen",
        "stores/redis/sentinel.py",
        "SETTLE: Final = 3.0",
        "SETTLE: Final = 0.0",
        "tests/stores/redis/test_layouts.py",
        "tests/stores/redis/test_sentinel.py",
    ),
    _d(
        "quorum: one server less than a majority will do",
        "stores/quorum/ballots.py",
        "return nodes // 2 + 1",
        "return nodes // 2",
        *_BALLOTS,
    ),
    _d(
        "quorum: votes at different ballots count together",
        "stores/quorum/ballots.py",
        "    if count < need:\n        return None\n    lefts",
        "    lefts",
        *_BALLOTS,
    ),
    _d(
        "quorum: of an even number of clocks the earlier one counts",
        "stores/quorum/ballots.py",
        "known[len(known) // 2]",
        "known[(len(known) - 1) // 2]",
        *_BALLOTS,
    ),
    _d(
        "quorum: a clock far ahead is followed for ever",
        "stores/quorum/ballots.py",
        "if self._last < time + _ASTRAY else time",
        "if self._last else time",
        *_BALLOTS,
        "tests/quorum/test_simulator.py",
    ),
    _d(
        "quorum: one server's word is enough that a lease was held to its end",
        "stores/quorum/give.py",
        "released >= (1 if any_will_do else quorum.need)",
        "released >= 1",
        "tests/stores/quorum/test_data.py",
    ),
    _d(
        "etcd: the cluster's id is not looked at",
        "stores/etcd/incarnation.py",
        "if now.cluster != known.cluster or now.revision < known.modified:",
        "if now.revision < known.modified:",
        "tests/stores/etcd/test_restore.py::test_the_marker_of_another_cluster_is_not_believed",
    ),
    _d(
        "etcd: a restored cluster is taken for the one before",
        "stores/etcd/incarnation.py",
        "return now.term < known.term or now.applied - now.revision < known.applied - known.modified",
        "return now.term < 0",
        "tests/stores/etcd/test_restore.py::test_a_restored_cluster_is_noticed_by_whoever_was_connected_before",
    ),
    _d(
        "etcd: a grant is proved for all of its ttl, whenever it was asked for",
        "stores/etcd/taking.py",
        "proved = min(state.session.proved, state.due) - sent",
        "proved = state.ttl",
        "tests/stores/etcd/test_sharing.py::test_a_lease_that_joins_others_is_proved_for_what_they_have_left",
    ),
    _d(
        "etcd: a ttl is granted though another one was noted in its place",
        "stores/etcd/incarnation.py",
        "        while not self.noted.covers(ttl, known.value):",
        "        if not self.noted.covers(ttl, known.value):",
        "tests/stores/etcd/test_restore.py::test_a_ttl_is_granted_only_once_it_is_noted_whoever_notes_another_at_the_same_moment",
    ),
    _d(
        "etcd: a ttl is noted once, and in no incarnation after",
        "stores/etcd/incarnation.py",
        "        if not self.noted.covers(ttl, known.value):",
        "        if ttl > self.longest:",
        "tests/stores/etcd/test_restore.py::test_a_long_ttl_is_noted_in_each_incarnation",
    ),
    _d(
        "etcd: a look that failed counts as one that tells nothing",
        "stores/etcd/incarnation.py",
        "            if error.never:",
        "            if error.text:",
        "tests/stores/etcd/test_incarnation.py::test_a_member_that_could_not_tell_now_is_not_trusted",
    ),
    _d(
        "etcd: a late answer of the incarnation before ends this one",
        "stores/etcd/incarnation.py",
        "        if self.ended != ended:",
        "        if self.ended < ended:",
        "tests/stores/etcd/test_incarnation.py::test_a_late_answer_of_the_incarnation_before_says_nothing_of_this_one",
    ),
    _d(
        "etcd: a try that was not sent says so of an earlier one too",
        "stores/etcd/client.py",
        "            trail.rest = 0\n            return\n        if isinstance(error, StoreUnavailable):",
        "            raise error\n        if isinstance(error, StoreUnavailable):",
        "tests/stores/etcd/test_doubts.py::test_a_request_that_may_have_been_carried_out_stays_in_doubt",
    ),
    _lua(
        "redis: a take overwrites whoever holds it",
        "stores/redis/take.lua",
        "  local granted = grant('NX')",
        "  local granted = grant('GET')",
        *_redis("test_of_many_contenders_exactly_one_is_granted"),
    ),
    _lua(
        "redis: tokens are the server's clock alone",
        "stores/redis/take.lua",
        "local token = math.max(now, least_token, last_token and last_token + 1 or 0)",
        "local token = math.max(now, least_token)",
        "tests/stores/redis/test_records.py",
        "tests/stores/redis/test_server.py",
        *_redis("test_the_token_grows_with_every_release"),
    ),
    _lua(
        "redis: a promoted server's tokens are its own clock's",
        "stores/redis/take.lua",
        "local token = math.max(now, least_token, last_token and last_token + 1 or 0)",
        "local token = math.max(now, last_token and last_token + 1 or 0)",
        "tests/stores/redis/test_incarnation.py::test_a_promoted_replica_with_a_slow_clock_gives_larger_tokens",
    ),
    _lua(
        "redis: a claim that was granted before a promotion keeps its token",
        "stores/redis/take.lua",
        "least_token < 0 then",
        "least_token < -1e17 then",
        "tests/stores/redis/test_incarnation.py::test_a_claim_that_was_granted_before_a_promotion_gets_a_token_of_after_it",
    ),
    _lua(
        "redis: a server out of memory notes no claim in doubt",
        "stores/redis/give.lua",
        "  try('HDEL', KEYS[2], FIELD.incarnation)\n  if not swept",
        "  if not swept",
        "tests/stores/redis/test_late_takes.py::test_a_claim_in_doubt_is_noted_by_a_server_out_of_memory_too",
    ),
    _lua(
        "redis: a take that nobody waits for any more is carried out",
        "stores/redis/take.lua",
        "if now > deadline and #now >= #deadline then return 0 end",
        "",
        "tests/stores/redis/test_late_takes.py",
        *_redis("test_a_take_that_arrives_too_late_uses_no_slot"),
    ),
    _lua(
        "redis: a used slot is free for everybody",
        "stores/redis/take.lua",
        "  used = call('GET', slot)\n",
        "",
        *_redis("test_a_slot_is_claimed_once"),
    ),
    _lua(
        "redis: a paused name is granted",
        "stores/redis/take.lua",
        "  paused, resign = unpack(",
        "  _, resign = unpack(",
        *_redis("test_a_paused_name_is_granted_to_nobody"),
    ),
    _lua(
        "redis: a repeated take shortens the ttl",
        "stores/redis/take.lua",
        "  if left < tonumber(ttl) then\n    call('PEXPIRE', KEYS[1], ttl)",
        "  if left then\n    call('PEXPIRE', KEYS[1], ttl)",
        *_redis("test_a_repeated_take_never_shortens_the_ttl"),
    ),
    _lua(
        "redis: a renewal shortens the ttl",
        "stores/redis/renew.lua",
        "if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl) end",
        "call('PEXPIRE', key, ttl)",
        *_redis("test_a_renewal_never_shortens_the_ttl"),
    ),
    _lua(
        "redis: anybody renews",
        "stores/redis/renew.lua",
        "  if type(value) ~= 'string' or string.sub(value, 1, #head) ~= head then return 0 end",
        "  if type(value) ~= 'string' then return 0 end",
        *_redis("test_a_stranger_cannot_renew"),
    ),
    _lua(
        "redis: anybody releases",
        "stores/redis/give.lua",
        "if not value or not starts_with(value, head) then",
        "if not value then",
        *_redis(
            "test_a_stranger_cannot_release", "test_a_late_release_does_not_hit_the_next_holder"
        ),
    ),
    _lua(
        "redis: anybody gives a slot back",
        "stores/redis/give.lua",
        "  is_freed = used and starts_with(used, any_token) and call",
        "  is_freed = used and call",
        *_redis("test_nobody_else_can_give_a_slot_back"),
    ),
    _lua(
        "redis: a write under a version does not look at it",
        "stores/redis/put.lua",
        "holds = old and string.match(old, '^%d+') == wanted",
        "holds = old",
        *_redis("test_a_version_guards_against_a_lost_update"),
    ),
    _lua(
        "quorum: a server that lost its data votes at once",
        "stores/quorum/take.lua",
        "  if young > 0 then",
        "  if young > 1e18 then",
        *_NODE,
    ),
    _lua(
        "quorum: the floor after a loss is as if nothing had been lost",
        "stores/quorum/take.lua",
        "if born > 0 and floor < born + MINUTE then floor = born + MINUTE end",
        "",
        *_NODE,
    ),
    _lua(
        "quorum: a ballot below the floor gets a vote",
        "stores/quorum/take.lua",
        "if ballot - floor > 0 then",
        "if ballot then",
        *_NODE,
    ),
    _lua(
        "quorum: a lease is planted whatever happened since",
        "stores/quorum/plant.lua",
        "if (floor or '') ~= seen then return 0 end\n",
        "",
        *_NODE,
    ),
    _lua(
        "quorum: a vote of a later try is taken back",
        "stores/quorum/revoke.lua",
        "  if stored - ballot <= 0 then",
        "  if stored then",
        *_NODE,
    ),
    _lua(
        "quorum: a used slot is forgotten by the server's own clock",
        "stores/quorum/accept.lua",
        "math.floor(ballot / 1000)",
        "call('TIME')[1] * 1000",
        "tests/stores/quorum/test_beside.py",
    ),
    _lua(
        "quorum: anybody renews",
        "stores/quorum/renew.lua",
        "  if type(value) == 'string' and starts_with(value, head) then",
        "  if type(value) == 'string' then",
        *_NODE,
    ),
    _sql(
        "sqlite: anybody renews",
        "stores/sqlite/schema.py",
        "    WHERE key = ?3 AND claim = ?4 AND token = ?5 AND expires > ?6",
        "    WHERE key = ?3 AND (claim = ?4 OR token != ?5) AND expires > ?6",
        *_sqlite("test_a_stranger_cannot_renew", "test_a_renewal_with_another_token_is_refused"),
    ),
    _sql(
        "sqlite: a renewal after the end revives",
        "stores/sqlite/schema.py",
        "AND token = ?5 AND expires > ?6",
        "AND token = ?5 AND ?6 > 0",
        *_sqlite("test_a_renewal_after_the_end_brings_nothing_back"),
    ),
    _sql(
        "sqlite: a renewal shortens the ttl",
        "stores/sqlite/schema.py",
        "UPDATE lease SET expires = max(expires, ?1)",
        "UPDATE lease SET expires = ?1",
        *_sqlite("test_a_renewal_never_shortens_the_ttl"),
    ),
    _sql(
        "sqlite: a release hits whoever holds it now",
        "stores/sqlite/schema.py",
        "WHERE key = ? AND claim = ? AND token = coalesce(?, token) AND expires > ?",
        "WHERE key = ? AND claim >= '' AND ? >= '' AND token = coalesce(?, token) AND expires > ?",
        *_sqlite("test_a_stranger_cannot_release"),
    ),
    _sql(
        "sqlite: anybody gives a slot back",
        "stores/sqlite/schema.py",
        "DELETE FROM slot WHERE key = ? AND name = ? AND claim = ?",
        "DELETE FROM slot WHERE key = ? AND name = ? AND claim != ?",
        *_sqlite("test_nobody_else_can_give_a_slot_back"),
    ),
    _sql(
        "sqlite: those whose time is over count among those who share",
        "stores/sqlite/schema.py",
        "max(permits) FROM sharer WHERE key = ? AND expires > ?",
        "max(permits) FROM sharer WHERE key = ? AND ? >= 0",
        *_sqlite("test_each_ends_with_its_own_ttl"),
    ),
    _sql(
        "sqlite: the first who leaves takes the latch away",
        "stores/sqlite/schema.py",
        "        expires = coalesce(s.last, 0), ended",
        "        expires = 0, ended",
        *_sqlite("test_readers_keep_a_writer_out_and_a_writer_keeps_readers_out"),
    ),
    _sql(
        "sqlite: a latch begins with those who shared the one before",
        "stores/sqlite/sharers.py",
        'now if shared else float("inf")',
        "now",
        "tests/stores/sqlite/test_sharers.py",
    ),
    _sql(
        "sqlite: tokens start again after a record was forgotten",
        "stores/sqlite/schema.py",
        "SET swept = ?, floor = max(floor, ?)",
        "SET swept = ?, floor = min(floor, ?)",
        *_sqlite("test_the_token_grows_after_the_record_was_forgotten"),
        "tests/stores/sqlite/test_store.py",
        "tests/stores/sqlite/test_same_as_table.py",
    ),
    _sql(
        "sqlite: a used slot is not on the disk when its run begins",
        "stores/sqlite/core.py",
        "        mode = DURABLE if ask.slot else WRITE",
        "        mode = WRITE",
        "tests/stores/sqlite/test_store.py",
        "tests/stores/sqlite/test_power.py",
    ),
    _sql(
        "postgresql: tokens are the server's clock alone",
        "stores/postgresql/schema.sql",
        "new_token := greatest(r.token + 1, (date_part",
        "new_token := greatest(0, (date_part",
        "tests/stores/postgresql/test_store.py::test_tokens_grow_though_the_clock_was_set_back",
    ),
    _sql(
        "postgresql: a take that nobody waits for any more is carried out",
        "stores/postgresql/schema.sql",
        "    now := clock_timestamp();\n    IF now < e.born + coalesce",
        "    p_until := NULL;\n    now := clock_timestamp();\n    IF now < e.born + coalesce",
        "tests/stores/postgresql/test_late.py::test_a_take_that_the_network_held_back_until_its_time_was_over_is_refused",
    ),
    _sql(
        "postgresql: a take is carried out whenever the row's lock is free",
        "stores/postgresql/schema.sql",
        "    IF clock_timestamp() > timestamptz 'epoch' + p_until * us THEN",
        "    IF false THEN",
        "tests/stores/postgresql/test_late.py::test_a_take_that_waited_for_a_locked_row_until_its_time_was_over_is_not_carried_out",
    ),
    _sql(
        "postgresql: a take may be carried out a minute after its time",
        "stores/postgresql/dialect.py",
        'b"%d" % ((until + ahead) * 1_000_000)',
        'b"%d" % ((until + ahead + 60) * 1_000_000)',
        "tests/stores/postgresql/test_late.py::test_a_take_that_the_network_held_back_until_its_time_was_over_is_refused",
    ),
    _sql(
        "postgresql: a claim is given up before its record is looked for",
        "stores/postgresql/schema.sql",
        "    LOOP\n        -- The record's lock first",
        "    PERFORM incumbent.remember(p_key);\n    LOOP\n        -- The record's lock first",
        "tests/stores/postgresql/test_store.py::test_tokens_grow_over_a_record_that_is_forgotten_at_the_same_moment",
    ),
    _sql(
        "postgresql: nobody notes that a claim was given up",
        "stores/postgresql/schema.sql",
        "    IF p_token IS NULL THEN\n        PERFORM incumbent.give_up(p_key, p_claim);",
        "    IF false THEN\n        PERFORM incumbent.give_up(p_key, p_claim);",
        "tests/stores/postgresql/test_late.py::test_who_gave_a_claim_up_can_never_be_granted_it_again",
    ),
    _sql(
        "postgresql: a claim that was given up is granted",
        "stores/postgresql/schema.sql",
        "            IF EXISTS (SELECT FROM incumbent.given_up\n",
        "            IF NOT EXISTS (SELECT FROM incumbent.given_up\n",
        "tests/stores/postgresql/test_late.py::test_who_gave_a_claim_up_can_never_be_granted_it_again",
    ),
    _sql(
        "postgresql: anybody renews",
        "stores/postgresql/schema.sql",
        "        WHERE r.key = a.key AND r.claim = a.claim AND r.token = a.token AND r.expires > now\n        RETURNING",
        "        WHERE r.key = a.key AND r.token = a.token AND r.expires > now\n        RETURNING",
        *_postgresql("test_a_stranger_cannot_renew"),
    ),
    _sql(
        "postgresql: a take changes what another has changed meanwhile",
        "stores/postgresql/schema.sql",
        "        WHERE key = p_key AND changes = r.changes AND token = r.token AND expires = r.expires\n",
        "        WHERE key = p_key\n",
        "tests/stores/postgresql/test_sharing.py::test_of_two_takes_that_looked_at_the_same_moment_one_is_granted",
    ),
)
