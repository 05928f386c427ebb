"""Mutations of what locks add to leases: entering again, and several names at once."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, in_area

_REENTRANT = ("tests/top/test_reentrant.py",)

_p = in_area("protocol")

MUTATIONS: tuple[Mutation, ...] = (
    _p(
        "an inner exit of a reentrant lock gives the lease back",
        "handles.py",
        "        if held.inner is None or not held.let_go_of_one():\n",
        "        if held.inner is None or held.let_go_of_one():\n",
        *_REENTRANT,
    ),
    _p(
        "a lost holding is taken anew inside its own body",
        "handles.py",
        "        if not proved:\n            raise loss_of(held",
        "        if not proved:\n            return None\n            raise loss_of(held",
        *_REENTRANT,
    ),
    _p(
        "a task enters again what its thread holds",
        "inner.py",
        "    return threading.current_thread() if task is None else task\n",
        "    return threading.current_thread()\n",
        *_REENTRANT,
    ),
)
