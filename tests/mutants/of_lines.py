"""Mutations of how one waits on Redis: the line, who watches, and what is heard."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_WORDS = "tests/stores/redis/test_words.py"
_LINES = "tests/stores/redis/test_lines.py"
_HUB = "tests/stores/redis/test_hub.py"
_RACES = "tests/stores/redis/test_hub_races.py"
_AS_MODEL = "tests/stores/redis/test_same_as_model.py"
_TAKE, _GIVE, _LINE = (f"stores/redis/{name}.lua" for name in ("take", "give", "line"))

_lua = in_area("Lua")
_d = in_area("dialects")
_p = in_area("protocol")

MUTATIONS: tuple[Mutation, ...] = (
    _lua(
        "redis: a waiter that asked for fairness is overtaken like any other",
        _TAKE,
        "(turn.overtaken >= 4 or string.match(turn.first, '^%S+ %S+ f'))",
        "(turn.overtaken >= 4)",
        _AS_MODEL,
    ),
    _lua(
        "redis: one that was silent in its turn has a second one after one that did not wait",
        _LINE,
        "    if turn.lapses_at <= now_ms then turn.lapses_at = SILENT end\n",
        "",
        _WORDS,
    ),
    _lua(
        "redis: a candidate that need not ask is listed for as long as the first is",
        _LINE,
        "      if type(ends) == 'string' and tonumber(ends) < longer then",
        "      if type(ends) == 'string' then",
        _WORDS,
        _AS_MODEL,
    ),
    _lua(
        "redis: a name that was paused before anybody held it has no line",
        _TAKE,
        "(last_token or has_fields)",
        "last_token",
        _AS_MODEL,
    ),
    _lua(
        "redis: a waiter for another number of permits stands in line",
        _TAKE,
        "waits and not others and (",
        "waits and (",
        _AS_MODEL,
    ),
    _lua(
        "redis: beside those who share a lease the next one waits for their end",
        _LINE,
        "state and 0 or math.max",
        "math.max",
        _WORDS,
        _AS_MODEL,
    ),
    _lua(
        "redis: who gives back what it has lost stands in line",
        _GIVE,
        "  if turn then leave(",
        "  if turn and ARGV[4] then leave(",
        _WORDS,
        _AS_MODEL,
    ),
    _lua(
        "redis: the turn after a release begins when the last one would have ended",
        _GIVE,
        "if turn then offer_turn(0) end\n-- Waiters in line",
        "if turn then offer_turn(60000) end\n-- Waiters in line",
        _AS_MODEL,
    ),
    _lua(
        "redis: the first in line is overtaken five times",
        _TAKE,
        "turn.overtaken >= 4",
        "turn.overtaken >= 5",
        "tests/contract/test_redis.py::TestRedis::test_an_unfair_waiter_is_overtaken_a_few_times_at_most",
    ),
    _lua(
        "redis: a silent process loses one place in line",
        _LINE,
        "  if inbox == inbox_of(me) then",
        "  if inbox then",
        _WORDS,
    ),
    _lua(
        "redis: the last in line does not watch",
        _LINE,
        "  ask(waiters(-1, -1), math.ceil(turn_ms * 1.125))\n",
        "",
        _WORDS,
    ),
    _lua(
        "redis: the next in line does not watch",
        _LINE,
        "  ask(waiters(1, 15), turn_ms)\n",
        "",
        _WORDS,
    ),
    _lua(
        "redis: one of the process whose turn it is watches",
        _LINE,
        "if inbox_of(waiter) ~= inbox_of(turn.first) and name",
        "if name",
        _WORDS,
    ),
    _lua(
        "redis: who watches goes on when the turn is its own process's",
        _LINE,
        "(turn.recheck_at <= now_ms or starts_with(turn.watcher, inbox_of(first) .. '/'))",
        "turn.recheck_at <= now_ms",
        _WORDS,
    ),
    _lua(
        "redis: nobody watches in the place of one that left",
        _LINE,
        "  elseif watched then",
        "  elseif false then",
        _WORDS,
    ),
    _lua(
        "redis: who was granted goes on watching",
        _LINE,
        "  if turn.recheck_at <= now_ms or me and turn.watcher == name_of(me) then",
        "  if turn.recheck_at <= now_ms then",
        _WORDS,
    ),
    _d(
        "redis: one in line waits at a server where it has no place",
        "stores/redis/subscription.py",
        "if place.epoch != subscription.epoch:",
        "if False:",
        _HUB,
    ),
    _d(
        "redis: a subscription to another incarnation is kept",
        "stores/redis/subscription.py",
        "subscription.epoch != place.epoch",
        "subscription.epoch is None",
        _HUB,
    ),
    _d(
        "redis: a waiter that relied on another incarnation connects before it looks",
        "stores/redis/subscription.py",
        "            subscriber.wake()\n            return\n",
        "",
        _HUB,
    ),
    _d(
        "a connection that broke is asked to give up more channels",
        "net/subscriptions.py",
        "            if role.subscriptions[node] is not subscription:\n                break\n",
        "",
        _HUB,
    ),
    _d(
        "a waiter that joins a channel as it is given up relies on it",
        "net/subscriptions.py",
        "if not set(unused).isdisjoint(waiter.channels):",
        "if False:",
        _RACES,
    ),
    _d(
        "redis: a reader that runs out of its own time bars the others",
        "stores/redis/subscription.py",
        "                if _now() >= until:\n                    # Only",
        "                if False:\n                    # Only",
        _RACES,
    ),
    _d(
        "quorum: a waiter that was told keeps the loop of the reader busy",
        "stores/quorum/waiting.py",
        " if not other.over)]",
        ")]",
        "tests/stores/quorum/test_hub.py",
    ),
    _d(
        "a waiter of a closed loop stays first in line",
        "stores/turns.py",
        "until + _SILENT, wakeup",
        "inf, wakeup",
        "tests/stores/test_turns.py::test_a_waiter_of_a_closed_loop_does_not_hold_up_the_others",
    ),
    _d(
        "redis: who was told to look is told to look later",
        "stores/redis/subscription.py",
        "        if at < waiter.recheck_at:",
        "        if at:",
        _HUB,
    ),
    _p(
        "who is refused for a turn waits longer than the turn",
        "protocol/acquire.py",
        'place and refused.reason not in ("reserved", "turn")',
        "place",
        f"{_LINES}::test_one_that_looked_too_early_looks_again_when_the_turn_of_a_frozen_one_is_over",
    ),
    _p(
        "leaving the line is a doubt",
        "protocol/acquire.py",
        "port.owe(replace(claim.debt(now, undo_slot=True), only_leaves_line=True))",
        "port.owe(claim.debt(now, undo_slot=True))",
        f"{_LINES}::test_who_gives_up_leaves_the_line",
    ),
)
