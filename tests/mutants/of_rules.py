"""Mutations of the rules of a lease, and of what makes operations of them."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_MODEL = ("tests/rules/test_same_as_model.py",)
_TIMES = ("tests/rules/test_times.py",)
_MEMORY = ("tests/contract/test_memory.py",)
_CODEC = ("tests/rules/test_codec.py",)
_PLAIN_ROWS = "test_a_changed_rule_keeps_its_release_away_from_plain_rows_too"
_RELEASES = (f"tests/rules/test_releases.py::{_PLAIN_ROWS}",)
_CLIENTS = ("tests/rules/test_interleavings.py",)
_REGISTERS = ("tests/contract/test_registers.py",)
_CROWDS = ("tests/rules/test_crowds.py",)
_SHARED = ("tests/top/test_sharing.py", "tests/stores/test_table_shared.py")

_r = in_area("rules")


def _taking(about: str, old: str, new: str, *tests: str) -> Mutation:
    return _r(about, "rules/taking.py", old, new, *(tests or _MODEL))


def _keeping(about: str, old: str, new: str, *tests: str) -> Mutation:
    return _r(about, "rules/keeping.py", old, new, *(tests or _MODEL))


def _line(about: str, old: str, new: str, *tests: str) -> Mutation:
    return _r(about, "rules/line.py", old, new, *(tests or _MODEL))


MUTATIONS: tuple[Mutation, ...] = (
    _r(
        "a store is relied on before it has shown that conditional writes hold",
        "stores/register_store.py",
        'if plan.kind == "take" and not self._proved:',
        "if False:",
        *_REGISTERS,
    ),
    _r(
        "each take tries anew whether conditional writes hold",
        "stores/register_store.py",
        "            self._proved = True\n",
        "",
        *_REGISTERS,
    ),
    _r(
        "that a second write by one version is carried out is not noticed",
        "stores/probing.py",
        "    if now is None or now.version == seen.version or",
        "    if now is not None and",
        *_REGISTERS,
    ),
    _r(
        "that an acknowledged write is not there is not noticed",
        "stores/probing.py",
        "    if read.version in before:",
        "    if False:",
        *_REGISTERS,
    ),
    _r(
        "a waiter that may join by one request swaps",
        "stores/deciding.py",
        "if self._quick.join and waits and isinstance(found, Seen):",
        "if False:",
        *_CROWDS,
    ),
    _taking(
        "a take that comes late is granted",
        "if any(gone.claim == claim and gone.until > at.now for",
        "if any(gone.claim == claim and gone.until < at.now for",
    ),
    _taking(
        "a repeated take shortens",
        "    us = max(micros(ask.ttl), mine.expires - at.now)\n    longer",
        "    us = micros(ask.ttl)\n    longer",
    ),
    _taking(
        "a used slot is granted again",
        "if used is None or used.claim == claim or used.expires <= now:",
        "if used is None or used.claim != claim or used.expires <= now:",
    ),
    _taking(
        "a slot that is used is told as a closing",
        "        or _slot_used(claim, used, now, seen)\n        or _paused(record, seen)\n"
        "        or _closed(record, ask, now, seen)\n",
        "        or _paused(record, seen)\n        or _closed(record, ask, now, seen)\n"
        "        or _slot_used(claim, used, now, seen)\n",
        "tests/contract/test_memory.py",
    ),
    _taking(
        "a pause refuses nobody",
        "return None if record.pause is None else Refused",
        "return None if record.pause is not None else Refused",
    ),
    _taking(
        "a closing lets all in",
        "    if not closing.reserved_for:\n        return Refused",
        "    if closing.reserved_for:\n        return Refused",
    ),
    _taking(
        "the holder for which a name is reserved waits for the line",
        "    if first is None or closed(record, now):\n",
        "    if first is None:\n",
        *_TIMES,
    ),
    _taking(
        "one that wants the name alone waits for the first of those who share it",
        'return Refused("held", shown, max(ends), seen)',
        'return Refused("held", shown, min(ends), seen)',
    ),
    _taking(
        "who counts otherwise is let in",
        "    if ask.permits != permits:\n",
        "    if ask.permits < permits:\n",
        *_SHARED,
    ),
    _taking(
        "one more than there are permits holds a semaphore",
        "permits != UNLIMITED and count >= permits",
        "permits != UNLIMITED and count > permits",
        *_SHARED,
    ),
    _taking(
        "a waiter joins the line although its number of permits is another",
        'if ask.queue is not None and refusal.reason != "permits":',
        "if ask.queue is not None:",
    ),
    _taking(
        "a waiter asks again when the holder's ttl is over, however far that is",
        "left = ask.ttl if refusal.retry_after is None else min(ask.ttl, refusal.retry_after)",
        "left = ask.ttl if refusal.retry_after is None else max(ask.ttl, refusal.retry_after)",
    ),
    _taking(
        "a candidate is listed twice",
        "if it.until > now and it.holder != ask.holder]",
        "if it.until > now]",
    ),
    _taking(
        "the newest candidates are crowded out",
        "*others[1 - CANDIDATES_KEPT :], asker",
        "*others[: CANDIDATES_KEPT - 1], asker",
        *_MEMORY,
    ),
    _taking(
        "tokens stand still",
        "token = max(record.token + 1, at.wall, at.floor)",
        "token = max(record.token, at.wall, at.floor)",
    ),
    _taking(
        "tokens begin below the floor",
        "token = max(record.token + 1, at.wall, at.floor)",
        "token = max(record.token + 1, at.wall)",
        *_TIMES,
    ),
    _taking(
        "a grant forgets those who share the name",
        "        grants=(*beside, grant),\n",
        "        grants=(grant,),\n",
    ),
    _taking(
        "a grant leaves the name closed",
        "        closing=None,\n",
        "        closing=record.closing,\n",
    ),
    _taking(
        "a request to resign hits the next holder",
        "        resign=record.resign if beside else None,\n",
        "        resign=record.resign,\n",
    ),
    _taking(
        "who joins those who share a name frees them of a request to resign",
        "        resign=record.resign if beside else None,\n",
        "        resign=None,\n",
    ),
    _taking(
        "a grant ends the candidacy of others",
        "it.until > at.now and it.holder != elected\n",
        "it.until > at.now and it.holder == elected\n",
    ),
    _taking(
        "the turn of the next waiter begins although there is no room for it",
        "        line=lines.served(record.line, claim, 0 if room_beside else ttl, at.now),\n",
        "        line=lines.served(record.line, claim, 0, at.now),\n",
    ),
    _taking(
        "a slot ends with the lease that used it",
        'slot = grant._replace(expires=after(micros(ask.slot.keep)), meta=b"")',
        'slot = grant._replace(meta=b"")',
    ),
    _taking(
        "nobody is told that a holder began to share the name",
        "wake = EVERYBODY if ask.candidacy > 0 or shares else",
        "wake = EVERYBODY if ask.candidacy > 0 else",
        *_TIMES,
    ),
    _taking(
        "the history keeps one holding",
        '    return (Entry("past", past_place(record.granted - 1), record.last),)\n',
        "    return ()\n",
    ),
    _keeping(
        "a renewal brings back a lease of another incarnation",
        '    if renewal.epoch != at.epoch:\n        return Ruling(Gone("store_restarted"))\n',
        "",
        *_CLIENTS,
    ),
    _keeping(
        "a renewal needs no token",
        "    if mine is None or mine.token != renewal.token:\n",
        "    if mine is None:\n",
        *_MEMORY,
    ),
    _keeping(
        "a renewal shortens",
        "    us = max(micros(renewal.ttl), mine.expires - at.now)\n",
        "    us = micros(renewal.ttl)\n",
    ),
    _keeping(
        "another meta is no change",
        "        changes=record.changes + changed,\n",
        "        changes=record.changes,\n",
    ),
    _keeping(
        "a give in doubt is forgotten",
        "    if token is None and late_kept:\n",
        "    if token and late_kept:\n",
    ),
    _keeping(
        "anybody gives a slot back",
        "if slot is not None and used and used.claim == claim and used.expires > at.now:",
        "if slot is not None and used and used.expires > at.now:",
    ),
    _keeping(
        "a give needs no token",
        "    if mine is None or token not in (None, mine.token):\n        # It held nothing",
        "    if mine is None:\n        # It held nothing",
        *_MEMORY,
    ),
    _keeping(
        "who leaves as the first is no change",
        "    changes = 1 if first is not None and first.claim == claim else 0\n",
        "    changes = 0\n",
        *_MEMORY,
    ),
    _keeping(
        "a release begins nobody's turn",
        "new = new._replace(line=lines.begin_turn(line), changes=",
        "new = new._replace(line=line, changes=",
    ),
    _keeping(
        "a name that is reserved is closed to all",
        'closing = Closing(mine.holder, mine.token, after(us), reserve_for or "")',
        'closing = Closing(mine.holder, mine.token, after(us), "")',
    ),
    _keeping(
        "a release says nothing",
        "wake = EVERYBODY if next_one is None or closed_for > 0 else next_one.claim",
        'wake = ""',
        *_MEMORY,
    ),
    _keeping(
        "the next waiter has its turn while the name is held",
        "return there[0].expires - at.now if there and there[0].permits is None else 0",
        "return 0",
    ),
    _keeping(
        "the history does not know that a holding was given back",
        "return new._replace(last=last._replace(ended=at.wall)), ()",
        "return new, ()",
    ),
    _keeping(
        "a field is written although its guard does not hold",
        "        return Ruling(Stale())\n",
        "        pass\n",
    ),
    _keeping(
        "a claim that shares the name guards a field",
        "alone = there[0] if there and there[0].permits is None else None",
        "alone = there[0] if there else None",
    ),
    _keeping(
        "a version comes back after a field was removed",
        "max(record.version + 1, at.wall)",
        "max(1, at.wall)",
    ),
    _line(
        "others pass a waiter that asked for fairness",
        "return waiter if waiter.fair or line.overtaken",
        "return waiter if line.overtaken",
    ),
    _line(
        "a first waiter is overtaken without end",
        "line.overtaken >= OVERTAKEN_MOST else None",
        "line.overtaken < 0 else None",
        *_TIMES,
    ),
    _line(
        "a turn has no end",
        "    if waiter is None or waiter.claim == claim or line.lapses_at <= now:\n",
        "    if waiter is None or waiter.claim == claim:\n",
    ),
    _line(
        "a silent first waiter keeps its place",
        "    elif waiter.claim != head.claim and line.lapses_at <= now:\n",
        "    elif waiter.claim != head.claim and line.lapses_at < 0:\n",
    ),
    _line(
        "the first waiter's turn is not put off while it asks",
        "    return line._replace(lapses_at=after(looks_in + head.heartbeat))\n",
        "    return line if line.lapses_at else line._replace(lapses_at=after(looks_in + head.heartbeat))\n",
    ),
    _line(
        "a grant out of turn is not counted",
        "overtaken=line.overtaken + 1)",
        "overtaken=line.overtaken)",
        *_TIMES,
    ),
    _line(
        "a waiter that was served stays in line",
        "    return _next_turn(_without(line.waiters[1:], claim), looks_in)\n",
        "    return _next_turn(line.waiters, looks_in)\n",
    ),
    _line(
        "who leaves stays in line",
        "    waiters = _without(line.waiters, claim)\n    return line if",
        "    waiters = line.waiters\n    return line if",
    ),
    _r(
        "an instant that begins with the write begins with the decision",
        "rules/record.py",
        "    return instant if us is None else written + us\n",
        "    return instant if us is None else us\n",
        *_MODEL,
    ),
    _r(
        "a name that is paused is forgotten",
        "rules/record.py",
        "    if record.pause or record.resign or holders",
        "    if holders",
        *_TIMES,
    ),
    _r(
        "a record that was edited is read",
        "rules/codec.py",
        "    if crc32(body) != checksum:\n",
        "    if crc32(body) < 0:\n",
        *_CODEC,
    ),
    _r(
        "a record of another format is read",
        "rules/codec.py",
        "    if number != RECORD_FORMAT:\n",
        "    if number < RECORD_FORMAT:\n",
        *_CODEC,
    ),
    _r(
        "two that hold a name alone make sense",
        "rules/codec.py",
        "    if len(grants) > 1 and grants[0].permits is None:\n",
        "    if len(grants) > 2 and grants[0].permits is None:\n",
        *_CODEC,
    ),
    _r(
        "parts of a later version are lost",
        "rules/codec.py",
        "        **record.more,\n",
        "",
        *_CODEC,
    ),
    _r(
        "a record with a part of a later version is taken for a plain one",
        "rules/record.py",
        " == _PLAIN and not self.more\n",
        " == _PLAIN\n",
        *_CODEC,
    ),
    _r(
        "a file with plain rows does not say that other rules wrote them",
        "stores/sqlite/schema.py",
        "RECORD_FORMAT: Final = codec.RECORD_FORMAT\n",
        "RECORD_FORMAT: Final = 1\n",
        *_RELEASES,
    ),
    _r(
        "a new incarnation grants at once",
        "stores/deciding.py",
        "        if age < wait:\n",
        "        if age < 0:\n",
        *_CLIENTS,
    ),
    _r(
        "a swap that came second counts as done",
        "stores/deciding.py",
        "for index, instead in pairs if instead is not None]",
        "for index, instead in pairs if instead is None]",
        *_CLIENTS,
    ),
    _r(
        "a renewal is given up like a take",
        "stores/deciding.py",
        "answers = yield from self._decide_all(steps, tries=None)",
        "answers = yield from self._decide_all(steps)",
        *_CLIENTS,
    ),
    _r(
        "one who joined the line late is in it although it is gone",
        "stores/deciding.py",
        "        if gone or holding_of(record, claim, at):\n",
        "        if holding_of(record, claim, at):\n",
        "tests/rules/test_joins.py",
    ),
    _r(
        "one who joins the line is not in it because it was given up long ago",
        "stores/deciding.py",
        "any(it.claim == claim and it.until > at for it in record.given_up)",
        "any(it.claim == claim for it in record.given_up)",
        "tests/rules/test_joins.py",
    ),
)
