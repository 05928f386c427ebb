"""Mutations of groups and shards: who is there, which shard is whose, and when it is handed over."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_DIVISION = ("tests/shards/test_division.py",)
_GROUPS = ("tests/shards/test_groups.py",)
_SHARDS = ("tests/shards/test_shards.py",)
_FILE = "tests/shards/test_simulated.py"
_COMING = (f"{_FILE}::test_members_that_come_leave_no_shard_vacant_for_a_renewal_interval",)
_FROZEN = (f"{_FILE}::test_one_that_looks_after_the_dead_and_is_frozen_delays_only_its_own_shards",)
_STRUCK = (f"{_FILE}::test_a_member_that_is_struck_although_it_lives_comes_back",)
_FAR = (f"{_FILE}::test_a_store_that_is_a_tenth_of_a_second_away_settles_too",)

_p = in_area("protocol")

MUTATIONS: tuple[Mutation, ...] = (
    _p(
        "a shard is begun under a lease that nobody else asks for",
        "protocol/roster.py",
        '        key = Key(group.namespace, f"{group.name}/{number}")',
        '        key = Key(group.namespace, f"{group.name}/{number + id(self)}")',
        *_COMING,
    ),
    _p(
        "a member ignores who comes later",
        "protocol/roster.py",
        "        self._mine = shards_of(member, self.name, self.count, members)",
        "        self._mine = self._mine or shards_of(member, self.name, self.count, members)",
        *_COMING,
    ),
    _p(
        "a shard that is another's is kept",
        "protocol/roster.py",
        "                self._bodies.stop(number)",
        "                pass",
        *_COMING,
    ),
    _p(
        "a shard is given away while its body still works",
        "locks/shards.py",
        "        if shard is not None:\n            shard._ask_to_stop()",
        "        if shard is not None:\n            shard._ask_to_stop()\n"
        "            getattr(shard, '_release', int)()",
        *_SHARDS,
    ),
    _p(
        "who is no member any more keeps its shards",
        "protocol/roster.py",
        "            division.divide(roster.me, ())",
        "            pass",
        *_SHARDS,
    ),
    _p(
        "work that waits is not told that its lease cannot be proved",
        "locks/shards.py",
        "                shard._woken.set()",
        "                pass",
        f"{_SHARDS[0]}::test_work_that_waits_is_told_within_the_lease_when_it_cannot_be_proved",
    ),
    _p(
        "members with another number of shards are counted",
        "protocol/roster.py",
        "            await self._refuse_other_counts(port)",
        "            pass",
        *_SHARDS,
    ),
    _p(
        "who only joined the group gets shards",
        "protocol/roster.py",
        " if field.value == roster.note]",
        "]",
        *_SHARDS,
    ),
    _p(
        "the dead stay on the roster",
        "protocol/roster.py",
        "            return False\n        holding",
        "            return True\n        holding",
        *_GROUPS,
    ),
    _p(
        "a member looks after one other only",
        "protocol/roster.py",
        "WATCHED: Final = 3",
        "WATCHED: Final = 1",
        *_FROZEN,
    ),
    _p(
        "one that is struck although it lives stays away",
        "protocol/roster.py",
        "        if self.is_in(sent) and self.me not in found:",
        "        if False:",
        *_STRUCK,
    ),
    _p(
        "a member that meets its own lease ends",
        "protocol/roster.py",
        " or await self._was_ours(port, own.key):",
        ":",
        "tests/shards/test_groups.py::test_a_member_waits_for_its_own_lease_where_the_store_keeps_it_for_longer",
    ),
    _p(
        "the roster is looked at only when the store says so",
        "protocol/roster.py",
        "        self._recheck_at = sent + self.policy.renew_every",
        "        self._recheck_at = sent + 100 * self.policy.renew_every",
        f"{_FILE}::test_who_comes_is_seen_within_a_renewal_interval_though_the_store_tells_nothing",
    ),
    _p(
        "a shard is asked for again as late as the roster is read",
        "protocol/roster.py",
        "            attempt.due = port.now() + delay\n",
        "            attempt.due = port.now() + 2 * self._wanted.policy.renew_every\n",
        *_COMING,
    ),
    _p(
        "a member takes all its shards before it looks who came",
        "protocol/roster.py",
        "            if port.now() >= over:",
        "            if False:",
        *_FAR,
    ),
    _p(
        "a node that is away keeps a member from the shards of others",
        "protocol/roster.py",
        "                self._postpone(port, attempt, error)\n",
        "                raise\n",
        *_SHARDS,
    ),
    _p(
        "a member whose lease cannot be read is struck",
        "protocol/roster.py",
        "                living += 1\n                continue\n",
        "                lives = False\n",
        *_SHARDS,
    ),
    _p(
        "a membership lasts as long as the shards",
        "locks/groups.py",
        "        return Policy(ttl, rho=policy.rho)",
        "        return policy",
        *_GROUPS,
    ),
    _p(
        "scores differ from process to process",
        "protocol/roster.py",
        'f"{name}\\0{member}"',
        'f"{hash(name)}\\0{member}"',
        *_DIVISION,
    ),
    _p(
        "of two scores the lower has the shard, once",
        "protocol/roster.py",
        "            if score > best[number]:",
        "            if score > best[number] or number % len(members) == 0:",
        *_DIVISION,
    ),
)
