"""The situation as a JSON file, for tools that read files; whole at every instant."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from incumbent.errors import ConfigError
from incumbent.serve.pages import leader_facts, say_instant, summary
from incumbent.serve.situation import View

__all__ = ["StatusFile"]

_log = logging.getLogger("incumbent")


class StatusFile:
    """Written anew at each `tell`. Raises ConfigError if the first write fails."""

    every = 2.0
    """Seconds between writes when nothing changes: an older instant means that we are gone."""

    def __init__(self, path: str, view: View) -> None:
        self._path = Path(path)
        self._draft = self._path.with_name(f".{self._path.name}.{os.getpid()}.draft")
        self._failing = False
        try:
            self._write(view)
        except OSError as error:
            raise ConfigError(
                f"--status-file {path} cannot be written ({error.strerror})", name="status_file"
            ) from error

    def tell(self, view: View) -> None:
        """Write it; the first of several failures in a row is warned of."""
        try:
            self._write(view)
        except OSError as error:
            if not self._failing:
                _log.warning("the status file cannot be written, trying on: %s", error)
            self._failing = True
        else:
            self._failing = False

    def close(self, view: View) -> None:
        """Remove it: nobody writes it any more."""
        del view
        for path in (self._path, self._draft):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("the status file cannot be removed: %s", error)

    def _write(self, view: View) -> None:
        facts = {
            "at": say_instant(view.wall),
            "pid": os.getpid(),
            "summary": summary(view),
            **leader_facts(view),
            "healthy": view.healthy,
            "ready": view.ready,
            "store_up": view.store_up,
            "terms": view.terms,
            "terms_lost": sum(view.losses.values()),
            "restarts": view.restarts,
        }
        self._draft.write_text(json.dumps(facts) + "\n", encoding="utf-8")
        self._draft.replace(self._path)
