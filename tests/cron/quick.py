"""Makes a long simulation affordable: pure functions of the ledger remember their answers.

Nothing is left out or approximated; `test_simulation.py` compares a run with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any
from unittest import mock

from incumbent.cron import executor, judging, ledger, schedule
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSpec
from incumbent.model import Field, Key, Record
from incumbent.stores.memory import MemoryTable

__all__ = ["QuickTable", "quiet", "remembering"]


def quiet(event: str, /, **facts: Any) -> None:
    """Hears of events and says nothing."""


class _Fields(dict[str, Field]):
    """The fields of a key as they were at one time, and what was asked of them."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        super().__init__(fields)
        self.answers: dict[str, Any] = {}


class QuickTable(MemoryTable):
    """Readers of a key that did not change since get the same fields."""

    def __init__(self) -> None:
        super().__init__()
        self._snapshots: dict[Key, tuple[str, _Fields]] = {}

    def read(self, key: Key, now: float) -> Record:
        """See MemoryTable."""
        record = super().read(key, now)
        seen, fields = self._snapshots.get(key, ("", None))
        if fields is None or seen != record.seen:
            fields = _Fields(record.fields)
            self._snapshots[key] = (record.seen, fields)
        return replace(record, fields=fields)


def _once(name: str, ask: Callable[[Mapping[str, Field]], Any]) -> Callable[..., Any]:
    def asked(fields: Mapping[str, Field]) -> Any:
        if not isinstance(fields, _Fields):
            return ask(fields)
        if name not in fields.answers:
            fields.answers[name] = ask(fields)
        return fields.answers[name]

    return asked


def _of_number(ask: Callable[..., Any]) -> Callable[..., Any]:
    def asked(fields: Mapping[str, Field], number: int = 1) -> Any:
        return _once(f"finished_spans {number}", lambda found: ask(found, number))(fields)

    return asked


def _of_record(
    ask: Callable[[JobSpec, Record], Any], applies: Callable[[Record], bool]
) -> Callable[..., Any]:
    """For what follows from the job and the fields alone, if `applies`."""

    def asked(spec: JobSpec, record: Record) -> Any:
        fields = record.fields
        if not isinstance(fields, _Fields) or not applies(record):
            return ask(spec, record)
        known = f"{ask.__name__} {spec.name}"
        if known not in fields.answers:
            fields.answers[known] = ask(spec, record)
        return fields.answers[known]

    return asked


def _is_quiet(record: Record) -> bool:
    return not record.slots and not record.holdings


def _of_spec(ask: Callable[..., Any]) -> Callable[..., Any]:
    # By identity, as a spec cannot be hashed; `told` keeps it, so that its id stays its own.
    told: dict[tuple[Any, ...], tuple[JobSpec, Any]] = {}

    def asked(spec: JobSpec, *more: float) -> Any:
        known = (id(spec), *more)
        if known not in told:
            if len(told) > 200_000:
                told.clear()
            told[known] = (spec, ask(spec, *more))
        return told[known][1]

    return asked


def _facts(ask: Callable[..., Any]) -> Callable[..., Any]:
    # Whoever asks adds to the answer.
    return lambda spec: dict(ask(spec))


@contextmanager
def remembering() -> Iterator[None]:
    """Within it the pure functions that a simulation asks most remember what they said."""
    slot_id = lru_cache(maxsize=200_000)(schedule.slot_id)
    runs_of = _once("runs_of", ledger.runs_of)
    read_job = _once("read_job", ledger.read_job)
    named: list[tuple[Any, str, Callable[..., Any]]] = [
        (ledger, "decode", lru_cache(maxsize=150_000)(ledger.decode)),
        (ledger, "open_runs", _once("open_runs", ledger.open_runs)),
        (ledger, "finished_spans", _of_number(ledger.finished_spans)),
        (judging, "finished_spans", _of_number(ledger.finished_spans)),
        (judging, "missed_slots", _of_spec(judging.missed_slots)),
        (executor, "facts_of_job", _facts(_of_spec(executor.facts_of_job))),
        (Every, "describe", cache(Every.describe)),
    ]
    known_until = _of_record(judging.known_until, lambda _: True)
    named += [(module, "known_until", known_until) for module in (judging, executor)]
    named.append((executor, "gaps", _of_record(judging.gaps, _is_quiet)))
    named.append((judging, "slot_id", slot_id))
    named += [(module, "runs_of", runs_of) for module in (judging, ledger)]
    named += [(module, "read_job", read_job) for module in (judging, ledger, executor)]
    with ExitStack() as stack:
        for where, name, instead in named:
            stack.enter_context(mock.patch.object(where, name, instead))
        yield
