"""Which file a `sqlite:` URL names, and making a place for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from incumbent.errors import ConfigError, StoreUnavailable

__all__ = ["default_path", "make_file", "path_of"]

_FORMS: Final = (
    'write "sqlite:" for the file of this user, or "sqlite:///absolute/path.db" for one of your own'
)


def path_of(url: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The absolute path that `url` names; ConfigError for any other form and for any option."""
    scheme, colon, rest = url.partition(":")
    place, mark, options = rest.partition("?")
    if scheme != "sqlite" or not colon:
        raise _refused(url, "is not a sqlite URL")
    if mark:
        option = options.partition("=")[0]
        raise _refused(url, f"has the option {option!r}, and this store knows none")
    if not place:
        return default_path(environ)
    if not place.startswith("//"):
        raise _refused(url, "has no // before its path")
    if not place.startswith("///"):
        raise _refused(url, f"names a host, {place[2:].partition('/')[0]!r}: a file is local")
    return _checked(url, place[2:])


def default_path(environ: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/incumbent/incumbent.db`, else below ~/.local/state (XDG Base Directory)."""
    state = environ.get("XDG_STATE_HOME", "")
    if state.startswith("/"):  # the specification says to ignore a relative one
        return Path(state, "incumbent", "incumbent.db")
    home = environ.get("HOME", "") or _home_by_user()
    return Path(home, ".local", "state", "incumbent", "incumbent.db")


def make_file(path: Path, *, default: bool) -> None:
    """Create the file, for its owner only, unless it exists; the default's folders too.

    Raises StoreUnavailable (permanent) that says what is missing.
    """
    try:
        if default:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Never open an existing one: closing it again would drop every POSIX lock that this
        # process holds on it (https://sqlite.org/howtocorrupt.html, 2.2).
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise _unusable(path, "it is a folder: name a file in it") from None
    except FileNotFoundError as error:
        todo = f"its folder does not exist: mkdir -p -m 700 {path.parent}"
        raise _unusable(path, todo) from error
    except NotADirectoryError as error:
        raise _unusable(path, f"{path.parent} is not a folder") from error
    except PermissionError as error:
        todo = f"user {os.geteuid()} may not write to {path.parent}"
        raise _unusable(path, todo) from error
    except OSError as error:
        raise _unusable(path, str(error.strerror), permanent=error.errno == errno.EROFS) from error


def _unusable(path: Path, why: str, *, permanent: bool = True) -> StoreUnavailable:
    return StoreUnavailable(f"cannot create {path}: {why}", permanent=permanent)


def _home_by_user() -> str:
    try:
        return str(Path.home())
    except RuntimeError as error:
        raise ConfigError(
            "sqlite: has no place for its file: neither XDG_STATE_HOME nor HOME is set, and this"
            ' user has no home. Name the file: "sqlite:///absolute/path.db"',
            name="store",
        ) from error


def _checked(url: str, text: str) -> Path:
    if "%" in text:
        from urllib.parse import unquote

        text = unquote(text)
    if "\0" in text or text.endswith("/") or "#" in url:
        raise _refused(url, "does not name a file (a # in a path is written %23)")
    return Path(text)


def _refused(url: str, why: str) -> ConfigError:
    return ConfigError(f"{url} {why}: {_FORMS}", name="store")
