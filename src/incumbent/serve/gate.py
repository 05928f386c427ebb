"""Who may look at a page, and act: the answer to a request, whatever server it came through.

    a request --> a probe? --> the token, its cookie, or a user    --> the handler of its path
                               whom the server let in: else refused

A foreign page can make a browser send a request, with all that the browser knows of us. So a
browser may act only from a page of ours, and a program only with the token itself.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from incumbent.errors import ConfigError
from incumbent.printable import printable
from incumbent.serve.pages import (
    OPEN_PATHS,
    STYLE,
    TEXT,
    HttpRequest,
    Page,
    Pending,
    Routes,
    answer,
    find_route,
)

_SHORTEST_TOKEN: Final = 16
LONGEST_BODY: Final = 9999
"""Bytes of a request."""


class PageGate:
    """The gate before `routes`.

    `name_by_token`: see `read_secrets`; None lets everybody look, and nobody act.
    `name_by_cookie`: what stands for each token in a browser, with the token's name.
    `why_closed`: why nobody is let in beyond the probes.
    `user_header`: the header in which a proxy names the user.
    """

    def __init__(
        self,
        routes: Routes,
        name_by_token: Mapping[str, str] | None,
        name_by_cookie: Mapping[bytes, str],
        why_closed: str = "",
        user_header: str = "",
    ) -> None:
        self._routes = routes
        self._name_by_token = name_by_token
        self._name_by_cookie = name_by_cookie
        self._why_closed = why_closed
        self._user_header = user_header

    def answer(self, request: HttpRequest, user: str | None = None) -> Page | Pending:
        """The page that was requested, or the refusal; `user`: who was let in before us."""
        found = find_route(self._routes, request.route)
        post = request.method == "POST" and (found or request.route == _LOGIN)
        if not post and request.method not in ("GET", "HEAD"):
            return Page(405, TEXT, "only GET and HEAD\n")
        # Before anything is compared: probes send no token, and must be answered whatever is wrong
        # with ours.
        if request.path in OPEN_PATHS:
            return answer(self._routes, request)
        caller = user or name_by_header(request.headers.get("authorization"), self._name_by_token)
        refused = self._refused(request, caller)
        if refused is not None:
            return refused
        if request.route == _LOGIN:
            return self._login(request)
        bearer = caller is not None and _is_of_a_program(request)
        who = user or name_of(request.headers.get(self._user_header, ""))
        who = who or caller or self._caller_by_cookie(request) or ""
        trusted = self._name_by_token is not None
        return answer(self._routes, request._replace(trusted=trusted, bearer=bearer, who=who))

    def _refused(self, request: HttpRequest, caller: str | None) -> Page | None:
        """`caller`: the user, or the name of the token that came with the request."""
        if self._why_closed:
            return Page(403, TEXT, self._why_closed)
        by_program = caller is not None and _is_of_a_program(request)
        post = request.method == "POST"
        if post and (self._name_by_token is None or not (by_program or _is_from_here(request))):
            return Page(403, TEXT, "this needs the token, and comes from a page of ours\n")
        if caller is not None or request.route in (_LOGIN, STYLE):
            return None
        return None if self._caller_by_cookie(request) is not None else self._unauthorized(request)

    # -- browsers: a cookie stands for the token ---------------------------------------------------

    def _caller_by_cookie(self, request: HttpRequest) -> str | None:
        given = request.headers.get("cookie", "").encode("latin-1", "replace").split(b";")
        for cookie, name in self._name_by_cookie.items():
            if any(hmac.compare_digest(one.strip(), cookie) for one in given):
                return name
        return None

    def _login(self, request: HttpRequest) -> Page:
        given = dict(parse_qsl(request.body))
        name = name_by_header(f"Bearer {given.get('token', '')}", self._name_by_token)
        if name is None:
            return self._unauthorized(request)
        of_it = (cookie for cookie, whose in self._name_by_cookie.items() if whose == name)
        cookie = f"{next(of_it).decode()}; HttpOnly; SameSite=Strict; Path=/"
        # Relative, because a proxy may serve us below a path of its own.
        view = given.get("view", "")
        where = f"./{view if _VIEW.fullmatch(view) else ''}"
        return Page(303, TEXT, "", {"Location": where, "Set-Cookie": cookie})

    def _unauthorized(self, request: HttpRequest) -> Page:
        if not self._name_by_token:
            return Page(401, TEXT, "who asks is not known: sign in first\n")
        if "/" in self._routes and "text/html" in request.headers.get("accept", ""):
            view = request.path[1:] + (f"?{request.query}" if request.query else "")
            if request.route == _LOGIN:
                view = dict(parse_qsl(request.body)).get("view", "")
            wrong = "This is not the token. " if request.route == _LOGIN else ""
            asked = _LOGIN_FORM.format(view=escape(view), wrong=wrong)
            return Page(401, "text/html; charset=utf-8", asked, _LOGIN_HEADERS)
        return Page(401, TEXT, _UNAUTHORIZED)


_LOGIN: Final = "POST /login"
_LOGIN_FORM: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>incumbent</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
    '<link rel="stylesheet" href="page.css"><main class="ask"><h1>incumbent</h1>'
    '<form method="post" action="login"><input type="hidden" name="view" value="{view}">'
    '<p role="status" class="bad">{wrong}</p><label>The token, from the file of --token-file:'
    ' <input type="password" name="token" autocomplete="current-password" required></label>'
    " <button>Look</button></form></main></html>"
)
_LOGIN_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
}
_VIEW: Final = re.compile(r"(?:name)?(?:\?[\w.%&=+*~-]*)?", re.ASCII)
"""The pages to which a login may return."""
_NAME_MOST: Final = 64
_UNAUTHORIZED: Final = (
    "this needs a token from the file that this server got as --token-file, in the header"
    " `Authorization: Bearer TOKEN`; a browser asks for it at /\n"
)


def name_of(text: str) -> str:
    """A name as it is put on record."""
    return printable(text).strip()[:_NAME_MOST]


def _is_from_here(request: HttpRequest) -> bool:
    """Whether a form of our own sent the request: browsers name the origin of a POST."""
    # Behind a proxy the Host may be another. There Sec-Fetch-Site tells, which no script can set.
    if request.headers.get("sec-fetch-site") == "same-origin":
        return True
    origin = request.headers.get("origin", "").partition("://")[2]
    return bool(origin) and origin == request.headers.get("host")


def _is_of_a_program(request: HttpRequest) -> bool:
    """Whether no page of others can have caused the request."""
    # A proxy may add the token to whatever a browser sends, or name its user by a cookie.
    of_a_browser = bool({"origin", "sec-fetch-site"} & request.headers.keys())
    return "authorization" in request.headers and not of_a_browser


# -- settings --------------------------------------------------------------------------------------


def read_secrets(path: str) -> dict[str, str]:
    """The names in a token file by their tokens.

    The first line is the token, whose name is "". If it is NAME:TOKEN, each line is. Raises
    ConfigError, whose text never contains a token.
    """
    try:
        with Path(path).open("rb") as file:
            # Of the open file: the path may lead to another one a moment later.
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        raise _bad_token(path, f"cannot be read ({error.strerror})") from None
    if mode & stat.S_IROTH:
        raise _bad_token(path, "can be read by everybody on this host: chmod o-rwx it")
    if len(content) > _LONGEST_FILE:
        raise _bad_token(path, f"has more than {_LONGEST_FILE} bytes")
    found: dict[str, str] = {}
    lines = content.splitlines()
    named = bool(lines and _NAMED.fullmatch(lines[0]))
    for number, line in enumerate(lines if named else lines[:1] or [b""], 1):
        if not line and named:
            continue
        match = _NAMED.fullmatch(line) if named else None
        if named and match is None:
            raise _bad_token(path, f"has no NAME:TOKEN in line {number}, as in its first line")
        name, token = (match["name"].decode(), match["token"]) if match else ("", line)
        where = f"line {number}" if number > 1 else "first line"
        if len(token) < _SHORTEST_TOKEN:
            least = f"at least {_SHORTEST_TOKEN} characters"
            raise _bad_token(path, f"is too short: its {where} needs {least} in the token")
        if not re.fullmatch(rb"[!-~]+", token):
            raise _bad_token(path, f"has blanks or other than ASCII characters in its {where}")
        if token.decode() in found:
            raise _bad_token(path, f"has the token of {found[token.decode()]} in its {where} again")
        found[token.decode()] = name
        # Who copies the whole line means the same.
        found[line.decode()] = name
    return found


_LONGEST_FILE: Final = 65_536
_NAMED: Final = re.compile(rb"(?P<name>[A-Za-z0-9][\w.@+-]{0,63}):(?P<token>.*)")


def name_by_header(header: str | None, name_by_token: Mapping[str, str] | None) -> str | None:
    """The name of the token in the Authorization header, or None; "" if `name_by_token` is None.

    `name_by_token`: see `read_secrets`.
    """
    if name_by_token is None:
        return ""
    scheme, _, token = (header or "").partition(" ")
    # compare_digest takes texts only if they are ASCII, so compare bytes.
    given, found = token.strip().encode("utf-8", "replace"), None
    for secret, name in name_by_token.items():
        # All are compared, also after a match: the time must not say which one it was.
        if hmac.compare_digest(given, secret.encode()) and scheme.lower() == "bearer":
            found = name
    return found


def checked_header(name: str) -> str:
    """The name of the header as HttpRequest has it. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9-]+", name, re.ASCII):
        raise ConfigError(f"--user-header {name!r} is no name of a header", name="user_header")
    return name.lower()


def _bad_token(path: str, problem: str) -> ConfigError:
    return ConfigError(f"--token-file {path} {problem}", name="token_file")
