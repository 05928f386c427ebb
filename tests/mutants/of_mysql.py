"""Mutations of the MySQL store, and of what the register kit has for stores like it."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutation import Mutation, in_area

_sql = in_area("SQL")
_d = in_area("dialects")

_TEXTS = "stores/mysql/statements.py"
_IN = "tests/stores/mysql/"


def _contract(name: str) -> str:
    return f"tests/contract/test_mysql.py::TestMysql::{name}"


MUTATIONS: Final[tuple[Mutation, ...]] = (
    _sql(
        "mysql: a name that is held is granted by the quick take",
        _TEXTS,
        " AND joins=0 AND expires<={CLOCK} AND {_SEALED}",
        " AND joins=0 AND {_SEALED}",
        _contract("test_a_repeat_after_somebody_else_came_is_refused"),
    ),
    _sql(
        "mysql: a take is carried out when nobody waits for it any more",
        _TEXTS,
        " AND {CLOCK} BETWEEN {admitted} AND {until}",
        " AND {CLOCK}>={admitted} AND {until}",
        f"{_IN}test_network.py::test_a_take_that_the_network_held_back_until_its_time_was_over_is_refused",
    ),
    _sql(
        "mysql: the clock is that of the statement's start, before it waited for the row",
        _TEXTS,
        "CLOCK: Final = \"TIMESTAMPDIFF(MICROSECOND,'1970-01-01',SYSDATE(6))\"",
        "CLOCK: Final = \"TIMESTAMPDIFF(MICROSECOND,'1970-01-01',NOW(6))\"",
        f"{_IN}test_server.py::test_a_take_that_waited_for_a_locked_row_until_its_time_was_over_is_not_carried_out",
    ),
    _sql(
        "mysql: a new incarnation grants names that are known at once",
        _TEXTS,
        " AND {CLOCK} BETWEEN {admitted} AND {until}",
        " AND {CLOCK}<={until} AND {admitted}",
        f"{_IN}test_incarnation.py::test_a_copy_elsewhere_is_a_new_incarnation",
    ),
    _sql(
        "mysql: the quick take does not know who joined the line",
        _TEXTS,
        " AND joins=0 AND expires<={CLOCK} AND",
        " AND expires<={CLOCK} AND",
        f"{_IN}test_waiting.py::test_who_joined_comes_before_others_when_the_ttl_of_the_holder_ends",
    ),
    _sql(
        "mysql: the quick give does not know who joined the line",
        _TEXTS,
        '" AND joins=0 AND claim=%s AND token=%s',
        '" AND claim=%s AND token=%s',
        f"{_IN}test_waiting.py::test_a_give_that_others_wait_for_begins_the_turn_of_the_first",
    ),
    _sql(
        "mysql: a row that was edited is granted",
        _TEXTS,
        ' AND expires<={CLOCK} AND {_SEALED}"',
        ' AND expires<={CLOCK}"',
        f"{_IN}test_bad_input.py::test_a_row_that_was_edited_by_hand_is_granted_to_nobody_and_left_as_it_is",
    ),
    _sql(
        "mysql: tokens are the server's clock alone",
        _TEXTS,
        "LAST_INSERT_ID(GREATEST(token+1,since,{floor}))",
        "LAST_INSERT_ID(GREATEST(since,{floor}))",
        f"{_IN}test_server.py::test_tokens_and_versions_grow_though_the_clock_was_set_back",
    ),
    _sql(
        "mysql: a renewal does not bring a notice",
        _TEXTS,
        " IN ({many}) AND {if_ours} AND notices=0",
        " IN ({many}) AND {if_ours}",
        _contract("test_the_holder_is_told_of_a_pause"),
    ),
    _sql(
        "mysql: a renewal compares neither claim nor token",
        _TEXTS,
        "AND {_LEASE} IN ({many}) AND",
        "AND (1 OR {_LEASE} IN ({many})) AND",
        _contract("test_a_renewal_with_another_token_is_refused"),
    ),
    _sql(
        "mysql: a renewal shortens",
        _TEXTS,
        "SET expires=GREATEST(expires,{CLOCK}+{ttl})",
        "SET expires={CLOCK}+{ttl}",
        _contract("test_a_renewal_never_shortens_the_ttl"),
    ),
    _sql(
        "mysql: a late renewal revives",
        _TEXTS,
        '" AND expires>{CLOCK} AND {_SEALED}"\n    )\n\n\n_LEASE',
        '" AND {_SEALED}"\n    )\n\n\n_LEASE',
        _contract("test_a_renewal_after_the_end_brings_nothing_back"),
    ),
    _sql(
        "mysql: a give does not compare the token",
        _TEXTS,
        "AND claim=%s AND token=%s",
        "AND claim=%s AND token>=0*%s",
        _contract("test_a_release_with_another_token_is_refused"),
    ),
    _sql(
        "mysql: a swap does not compare the version",
        _TEXTS,
        'f" AND version={version} AND {_SEALED}"',
        'f" AND {version}>=0 AND {_SEALED}"',
        f"{_IN}test_bad_input.py::test_a_record_that_is_mended_is_served_again",
    ),
    _sql(
        "mysql: a swap is done though the clock stepped back",
        _TEXTS,
        "BETWEEN {not_before} AND {not_before + LATE}",
        "<={not_before + LATE}",
        f"{_IN}test_bad_input.py::test_a_swap_is_refused_if_the_servers_clock_stepped_back",
    ),
    _sql(
        "mysql: what follows a swap is written though the swap was refused",
        _TEXTS,
        '" SELECT name,%s,%s,%s,written FROM incumbent_lease WHERE name=%s AND @done"',
        '" SELECT name,%s,%s,%s,written FROM incumbent_lease WHERE name=%s"',
        f"{_IN}test_bad_input.py::test_a_record_that_is_mended_is_served_again",
    ),
    _sql(
        "mysql: who joins while a swap is made is forgotten",
        _TEXTS,
        "kind='join' AND part=%s AND at=%s AND @done",
        "kind='join' AND (part=%s OR at<>%s) AND @done",
        f"{_IN}test_waiting.py::test_who_joins_between_a_look_and_its_swap_stays_beside_the_record",
    ),
    _sql(
        "mysql: who joins in the same instant stands in line by its name",
        _TEXTS,
        'f"GREATEST({CLOCK},COALESCE(',
        'f"GREATEST({CLOCK},0*COALESCE(',
        f"{_IN}test_waiting.py::test_who_joins_while_the_clock_stands_still_stands_behind",
    ),
    _sql(
        "mysql: tokens of a new incarnation do not lead the clock",
        _TEXTS,
        "GREATEST({CLOCK}+{JUMP},{_HIGHEST}+1)",
        "GREATEST({CLOCK},0*{_HIGHEST})",
        f"{_IN}test_incarnation.py::test_tokens_of_a_new_incarnation_are_above_those_that_were_lost",
    ),
    _sql(
        "mysql: leads over the clock add up",
        _TEXTS,
        "GREATEST({CLOCK}+{JUMP},{_HIGHEST}+1)",
        "(GREATEST({CLOCK},{_HIGHEST})+{JUMP})",
        f"{_IN}test_incarnation.py::test_a_lead_over_the_clock_does_not_add_up_over_incarnations",
    ),
    _sql(
        "mysql: a new incarnation marks no rows",
        _TEXTS,
        "SET epoch=id WHERE id=%s;COMMIT",
        "SET epoch=epoch WHERE id=%s;COMMIT",
        f"{_IN}test_incarnation.py::test_a_lead_over_the_clock_does_not_add_up_over_incarnations",
    ),
    _sql(
        "mysql: instants are in the server's time zone",
        _TEXTS,
        "time_zone='+00:00',",
        "",
        f"{_IN}test_bad_input.py::test_the_time_zone_of_the_server_does_not_matter",
    ),
    _sql(
        "mysql: a server that is read-only is written to by who may",
        _TEXTS,
        "@@server_id,@@read_only IN ('0','OFF'))",
        "@@server_id,1)",
        f"{_IN}test_incarnation.py::test_a_server_that_becomes_read_only_grants_nothing_more",
    ),
    _sql(
        "mysql: two first takes of a name lock its row for reading, and then for writing",
        _TEXTS,
        '        " ON DUPLICATE KEY UPDATE joins=joins"\n',
        '        ""\n',
        f"{_IN}test_server.py::test_first_takes_of_many_names_at_once_do_not_deadlock",
    ),
    _d(
        "mysql: another server goes on as if it were the first",
        "stores/mysql/server.py",
        "if known[2:4] == (here, made):",
        "if known[3:4] == (made,):",
        f"{_IN}test_incarnation.py::test_a_copy_elsewhere_is_a_new_incarnation",
    ),
    _d(
        "mysql: a dump that is loaded is the same data",
        "stores/mysql/server.py",
        "if known[2:4] == (here, made):",
        "if known[2:3] == (here,):",
        f"{_IN}test_incarnation.py::test_a_dump_that_is_loaded_is_a_new_incarnation_within_seconds",
    ),
    _d(
        "mysql: an error that is not known means that nothing was done",
        "stores/mysql/errors.py",
        "if meaning is None and error.in_doubt:",
        "if meaning is None and not error.code:",
        f"{_IN}test_server.py::test_an_error_that_may_come_after_a_commit_is_a_doubt_about_a_write",
    ),
    _d(
        "mysql: a longer ttl than the default is not on record before it is granted",
        "stores/pooled_registers.py",
        "if ttl > TTL_DEFAULT and micros(ttl) > wire.longest:",
        "if ttl < 0:",
        f"{_IN}test_incarnation.py::test_a_longer_ttl_than_usual_is_waited_for_after_a_failover",
    ),
    _d(
        "a driver's connection serves again after an exchange that was not completed",
        "stores/mysql/wire.py",
        "        self.unfinished = True\n        with _translated(in_doubt=in_doubt):",
        "        with _translated(in_doubt=in_doubt):",
        f"{_IN}test_server.py::test_a_transaction_that_fails_in_the_middle_leaves_nothing_locked_and_nothing_half_done",
    ),
    _d(
        "an error after something was written means that nothing was done",
        "stores/pooled_registers.py",
        "raise OutcomeUnknown(str(failure)) if exchange.wrote else failure from error",
        "raise failure from error",
        f"{_IN}test_server.py::test_an_error_after_something_was_written_is_a_doubt",
    ),
    _d(
        "a quick renewal does not look at its incarnation",
        "stores/rows.py",
        "and not it.shared and it.epoch == epoch:",
        "and not it.shared and epoch:",
        f"{_IN}test_incarnation.py::test_a_copy_elsewhere_is_a_new_incarnation",
    ),
    _d(
        "a record is read from a row whose checksum does not match",
        "stores/rows.py",
        "if not row.sound:",
        "if row.sound is None:",
        f"{_IN}test_bad_input.py::test_a_row_that_was_edited_by_hand_is_granted_to_nobody_and_left_as_it_is",
    ),
    _d(
        "a first use does not find out whether conditional writes hold",
        "stores/pooled_registers.py",
        "if not self.served:\n                run_blocking(",
        "if False:\n                run_blocking(",
        f"{_IN}test_bad_input.py::test_a_proxy_that_drops_the_condition_is_found",
    ),
    _d(
        "a waiter whose turn it is to look keeps the others waiting when it goes",
        "stores/polling.py",
        "            for other in [it for it in left if not it.notified][:1]:\n",
        "            for other in left[:0]:\n",
        f"{_IN}test_waiting.py::test_waiters_go_one_after_the_other_without_a_pause",
    ),
    _d(
        "a record in columns forgets who shares it",
        "rules/columns.py",
        "grants=() if mine else record.grants,",
        "grants=(),",
        "tests/rules/test_columns.py::test_a_record_in_columns_is_the_same_record",
    ),
    _d(
        "a doubt that is over keeps a record from being plain",
        "rules/taking.py",
        "given_up=tuple(it for it in record.given_up if it.until > at.now),",
        "given_up=record.given_up,",
        "tests/rules/test_columns.py::test_a_name_with_a_doubt_or_a_candidate_is_plain_again_once_that_is_over",
    ),
)
