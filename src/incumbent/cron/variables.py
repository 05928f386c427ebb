"""Variables in the values of a job file: ${NAME} and ${NAME:-default}, as in Compose files. Pure.

Not in a text that a shell runs: there the shell replaces them, when the job runs. `$${NAME}` stays
as `${NAME}`. Syntax: https://docs.docker.com/reference/compose-file/interpolation/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from incumbent.errors import ConfigError

_VARIABLE: Final = re.compile(
    r"\$(?P<escape>\$?)\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^{}]*))?\}"
)
_SHELL: Final = frozenset({"command", "on_failure"})


def fill_in(value: Any, key: str, environ: Mapping[str, str]) -> Any:
    """The value of a setting with its variables replaced, those in lists and tables too.

    An empty variable counts as unset if there is a default. Raises ConfigError for a variable that
    is not set and has no default.
    """
    if isinstance(value, str):
        return value if key in _SHELL else _filled(value, key, environ)
    if isinstance(value, list):
        # A command that is a list has no shell.
        return [_filled(it, key, environ) if isinstance(it, str) else it for it in value]
    if isinstance(value, dict):
        return {name: fill_in(it, f"{key}.{name}", environ) for name, it in value.items()}
    return value


def _filled(text: str, key: str, environ: Mapping[str, str]) -> str:
    def value_of(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        if found["escape"]:
            return found[0][1:]
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise ConfigError(
                f"the variable {name} is not set: set it, or write ${{{name}:-default}}", name=key
            )
        return environ[name]

    return _VARIABLE.sub(value_of, text)
