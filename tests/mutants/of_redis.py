"""Mutations of what speaks to Redis: the dialect in Python, the scripts in Lua."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area


def _redis(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/contract/test_redis.py::TestRedis::{name}" for name in names)


_AS_MODEL = "tests/stores/redis/test_same_as_model.py"
_REDIS = ("tests/stores/redis/test_dialect.py",)
_GIVEN_BACK = ("tests/stores/redis/test_given_back.py",)
_LET_GO = ("tests/stores/redis/test_let_go.py",)
_WHATEVER_BEFALLS = (
    "tests/stores/redis/test_incarnation_pure.py"
    "::test_tokens_grow_whatever_befalls_a_server_and_are_no_further_ahead_than_a_jump"
)
_UNFIT = (
    "tests/stores/test_unfit.py::test_clients_that_are_connected_notice_that_a_store_became_unfit"
)

_d = in_area("dialects")
_lua = in_area("Lua")

MUTATIONS: tuple[Mutation, ...] = (
    _d(
        "redis: tasks share a connection that was on its way to the server before",
        "stores/redis/aio.py",
        "        if idle is not self.idle:\n            wire.close()\n            return None\n",
        "",
        *_LET_GO,
    ),
    _d(
        "what a signal handler raises is a failed connection",
        "stores/redis/wire.py",
        "        raise_if_from_signal(error)\n        raise connect_error(",
        "        raise connect_error(",
        "tests/top/test_signal_errors.py::test_while_a_name_is_resolved",
    ),
    _d(
        "an error of our own in a callback of the loop is an outage",
        "stores/redis/aio.py",
        "    if not isinstance(error, Broken | hiredis.ProtocolError):\n        return error\n",
        "",
        "tests/stores/test_defects.py",
    ),
    _d(
        "a request whose time is over is sent",
        "stores/redis/aio.py",
        "            self._fail_late(_now())\n",
        "",
        "tests/stores/redis/test_one_connection.py",
    ),
    _d(
        "redis: the answer to another's claim is a grant",
        "stores/redis/take.py",
        'raise Mismatch("the answer is another claim\'s")',
        "pass",
        *_REDIS,
    ),
    _d(
        "redis: a repeated take counts for twice what is left",
        "stores/redis/take.py",
        "first._replace(ttl=reply[1] / 1000)",
        "first._replace(ttl=reply[1] / 500)",
        *_REDIS,
    ),
    _d(
        "redis: gone counts as released",
        "stores/redis/give.py",
        "return _RELEASED if reply else _GONE",
        "return _RELEASED",
        *_REDIS,
        *_redis("test_a_second_release_answers_gone"),
    ),
    _d(
        "redis: a guard by a claim guards nothing",
        "stores/redis/put_read.py",
        'return ("claim", value_start(claim, token))',
        'return ("none", "")',
        *_REDIS,
        *_redis("test_who_lost_the_lease_cannot_write_by_its_claim"),
    ),
    _d(
        "redis: a grant that could not be given back was certainly none",
        "stores/redis/give.py",
        "if reply != 1:",
        "if reply is None:",
        *_GIVEN_BACK,
    ),
    _d(
        "redis: a longer ttl is granted though nobody could be told of it",
        "stores/redis/take.py",
        "raise found.problem",
        "pass",
        *_GIVEN_BACK,
    ),
    _d(
        "redis: a new incarnation's tokens begin at the clock",
        "stores/redis/incarnation.py",
        "return max(now + _JUMP + 1, *",
        "return max(now, *",
        _WHATEVER_BEFALLS,
    ),
    _d(
        "redis: a jump is added to what an earlier incarnation has added",
        "stores/redis/incarnation.py",
        "marker.floor + _UNREPLICATED for marker",
        "marker.floor + _JUMP for marker",
        _WHATEVER_BEFALLS,
    ),
    _d(
        "redis: a promoted server is above its own clock alone, whatever its marker says",
        "stores/redis/incarnation.py",
        "*(marker.floor + _UNREPLICATED for marker in before), 0)",
        "0)",
        "tests/stores/redis/test_incarnation_pure.py::test_a_promoted_server_that_has_the_marker_is_above_it_whatever_its_clock",
    ),
    _lua(
        "redis: tokens that are ahead of the clock are granted on the long way",
        "stores/redis/take.lua",
        "  and string.sub(quiet_note, 18) == ARGV[4] and #last_token == #now\n",
        "  and string.sub(quiet_note, 18) == ARGV[4] and last_token < now and #last_token == #now\n",
        "tests/stores/redis/test_records.py::test_while_tokens_are_ahead_of_the_clock_they_grow_on_the_same_short_way",
    ),
    _lua(
        "redis: on the short way tokens are the clock's, also while they are ahead of it",
        "stores/redis/take.lua",
        "  if last_token >= now then token = string.format('%.0f', last_token + 1) end\n",
        "",
        "tests/stores/redis/test_records.py::test_while_tokens_are_ahead_of_the_clock_they_grow_on_the_same_short_way",
    ),
    _d(
        "redis: a script that was forgotten is sent only with a request that leaves alone",
        "stores/redis/wire.py",
        "any(map(is_forgotten, replies))",
        "step.answers == 1 and is_forgotten(replies[0])",
        *_GIVEN_BACK,
    ),
    _d(
        "redis: an undoing that was never sent leaves nothing in doubt",
        "stores/redis/wire.py",
        "error.sent = error.sent or begun or answers is not None",
        "pass",
        *_GIVEN_BACK,
    ),
    _d(
        "redis: records of another format are read as if they were ours",
        "stores/redis/incarnation.py",
        "if found is not None and int(found[1]) != RECORD_FORMAT:",
        "if False:",
        "tests/stores/redis/test_records.py::test_a_record_of_another_format_is_read_by_nobody_and_left_alone",
    ),
    _lua(
        "redis: a look beside a take says that the server is a master as before",
        "stores/redis/take.lua",
        "try('INFO', 'replication')",
        "'role:master'",
        "tests/stores/redis/test_incarnation.py::test_an_idle_connection_notices_a_switchover_that_left_the_marker_as_it_was",
    ),
    _d(
        "redis: a record of another format is read as a foreign client's",
        "stores/redis/put_read.py",
        'check_format(raw or b"", packer.where, names.lease)',
        "pass",
        "tests/stores/redis/test_records.py::test_a_record_of_another_format_is_read_by_nobody_and_left_alone",
    ),
    _d(
        "redis: a look does not ask whether the server may evict by now",
        "stores/redis/incarnation.py",
        "if not allow_eviction and read_facts(memory).evicts:",
        "if False:",
        "tests/stores/redis/test_incarnation_pure.py::test_a_look_notices_that_the_server_may_evict",
    ),
    _lua(
        "redis: a look beside a take says that nothing is evicted",
        "stores/redis/take.lua",
        "try('INFO', 'memory')",
        "'maxmemory:0'",
        f"{_UNFIT}[redis_that_evicts]",
    ),
    _d(
        "sentinel: no time in which the old master may go on unseen",
        "stores/redis/sentinel.py",
        "OLD_MASTER_FOR: Final = PROVES + 1.0",
        "OLD_MASTER_FOR: Final = 0.0",
        "tests/stores/redis/test_layouts.py",
        "tests/stores/redis/test_sentinel.py",
    ),
    _d(
        "sentinel: the newest opinion counts before a majority has heard of it",
        "stores/redis/sentinel.py",
        "    if agreeing < majority_of(asked):",
        "    if agreeing < 1:",
        "tests/stores/redis/test_layouts.py",
    ),
    _d(
        "sentinel: a master that is named again is the one that it was",
        "stores/redis/incarnation.py",
        "        if promotion not in (None, self.promotion):",
        "        if False:",
        "tests/stores/redis/test_incarnation_pure.py",
        "tests/stores/redis/test_sentinel.py",
    ),
    _d(
        "sentinel: an answer proves from when it came",
        "stores/redis/sentinel.py",
        "site.meant = target, asked_at + PROVES",
        "site.meant = target, _now() + PROVES",
        "tests/stores/redis/test_layouts.py",
    ),
    _d(
        "sentinel: what waited for a connection is sent whoever is the master by now",
        "stores/redis/wire.py",
        "if site is not None and not site.means(wire.server.target):",
        "if False:",
        "tests/stores/redis/test_sentinel.py",
    ),
    _lua(
        "redis: a take overwrites whoever holds it",
        "stores/redis/take.lua",
        "  local granted = grant('NX', is_first)",
        "  local granted = grant('GET', is_first)",
        *_redis("test_of_many_takers_one_is_granted"),
    ),
    _lua(
        "redis: one more than there are permits",
        "stores/redis/take.lua",
        "call('ZCARD', sharers) >= tonumber(permits)",
        "call('ZCARD', sharers) > tonumber(permits)",
        *_redis("test_as_many_hold_it_as_there_are_permits_and_no_more"),
    ),
    _lua(
        "redis: those who share and are over count on",
        "stores/redis/take.lua",
        "    forget_ended_parts()\n    local mine",
        "    local mine",
        *_redis("test_each_ends_with_its_own_ttl"),
    ),
    _lua(
        "redis: the last that came to share says when the lease ends",
        "stores/redis/grant.lua",
        "math.max(tonumber(ttl), is_first and 0 or call('PTTL', KEYS[1]))",
        "ttl",
        *_redis("test_the_longest_ttl_keeps_others_out"),
    ),
    _lua(
        "redis: the first who leaves ends it for all who share it",
        "stores/redis/grant.lua",
        "  if last then\n",
        "  if false then\n",
        *_redis("test_who_left_is_gone_while_others_hold_it"),
    ),
    _lua(
        "redis: what is left of those who shared a deleted lease holds it again",
        "stores/redis/grant.lua",
        "if call('DEL', sharers) == 1 then",
        "if call('EXISTS', sharers) == 1 then",
        "tests/stores/redis/test_shared.py::test_those_whose_lease_was_deleted_hold_nothing_any_more",
    ),
    _lua(
        "redis: the parts of those who crashed stay in the record of a name that is in use",
        "stores/redis/grant.lua",
        "if string.match(fields[at], '^' .. FIELD.sharer) then call('HDEL', KEYS[2], fields[at]) end",
        "",
        "tests/stores/redis/test_shared.py::test_of_those_who_crashed_nothing_stays_in_the_record",
    ),
    _lua(
        "redis: the next in line who may share is not told",
        "stores/redis/line.lua",
        "      notify(turn.first, 'turn', 0)\n    elseif",
        "    elseif",
        "tests/stores/redis/test_shared.py::test_all_readers_of_a_line_are_let_in_at_once",
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
        "if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl) end\n  local",
        "call('PEXPIRE', key, ttl)\n  local",
        *_redis("test_a_renewal_never_shortens_the_ttl"),
    ),
    _lua(
        "redis: anybody renews",
        "stores/redis/renew.lua",
        "  if type(value) ~= 'string' or string.sub(value, 1, #value_start) ~= value_start then return 0 end",
        "  if type(value) ~= 'string' then return 0 end",
        *_redis("test_a_stranger_cannot_renew"),
    ),
    _lua(
        "redis: anybody releases",
        "stores/redis/give.lua",
        "if not value or not starts_with(value, value_start) then",
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
        "redis: a refusal names one who shared the lease and has left",
        "stores/redis/grant.lua",
        " or value\n    local which",
        " and value\n    local which",
        *_redis("test_a_refusal_names_nobody_who_has_left"),
    ),
    _lua(
        "redis: a candidate with another number of permits is not listed",
        "stores/redis/take.lua",
        "if candidacy then\n  try('ZREMRANGEBYSCORE'",
        "if candidacy and not others then\n  try('ZREMRANGEBYSCORE'",
        _AS_MODEL,
        *_redis("test_a_candidate_with_another_number_of_permits_is_listed"),
    ),
    _lua(
        "redis: a name that is reserved is free for everybody",
        "stores/redis/take.lua",
        "if state == 'reserved' and string.match(value, ' (%S*)$') == holder then",
        "if state == 'reserved' then",
        _AS_MODEL,
    ),
    _lua(
        "redis: a request to resign reaches the next holder",
        "stores/redis/grant.lua",
        "  if resign and (is_first or not permits) then",
        "  if false then",
        _AS_MODEL,
    ),
    _lua(
        "redis: a closing ends with the ttl of the lease before it",
        "stores/redis/give.lua",
        "  call('SET', KEYS[1], 'incumbent1 ' .. state .. rest, 'PX', closed_ms)",
        "  call('SET', KEYS[1], 'incumbent1 ' .. state .. rest, 'KEEPTTL')",
        _AS_MODEL,
    ),
    _lua(
        "redis: a renewal of one that shares it shortens its part",
        "stores/redis/renew.lua",
        "  if tonumber(ends) < now_ms + ttl then",
        "  if ends then",
        _AS_MODEL,
    ),
    _lua(
        "redis: a renewal brings no notice to one that shares it",
        "stores/redis/renew.lua",
        "return try('HGET', record, FIELD.field_count) and notices_or_one(record) or 1",
        "return 1",
        *_redis("test_a_pause_lets_nobody_in_and_tells_all_of_them"),
    ),
    _lua(
        "redis: a claim that was given up is granted later",
        "stores/redis/take.lua",
        "  if doubt and doubt > now then return 0 end\n",
        "",
        _AS_MODEL,
    ),
    _d(
        "redis: several grants that too few replicas have are kept",
        "stores/redis/runner.py",
        '            takes = zip(plan.parts, cast("list[Any]", outcome), strict=True)',
        "            takes = []",
        "tests/stores/redis/test_multi.py::test_behind_sentinels_all_are_asked_for_at_once_and_no_replica_means_none_of_them",
    ),
    _d(
        "redis: of several names one whose slot has moved is not looked for",
        "stores/redis/cluster.py",
        "        outcomes.update(zip(moved, again, strict=True))\n",
        "",
        "tests/stores/redis/test_multi.py::test_a_name_whose_slot_moved_is_found_where_it_is[moved]",
    ),
)
