"""What differs from run to run is named by what it is: claims, instants, revisions, ports."""

from __future__ import annotations

import re

__all__ = ["normal"]

_RULES = [
    (re.compile(pattern), name)
    for pattern, name in (
        # Of a Lease in Kubernetes: who is asking, what the server adds, and what is left of a time.
        (r"(Authorization: Bearer )\S+", r"\1<token>"),
        (r'"(?:uid|resourceVersion|creationTimestamp)": "[^"]*"(?:, )?', ""),
        (r", }", "}"),
        (r'("incumbent/record": )"(?:[^"\\]|\\.)*"', r"\1<record>"),
        (r'("(?:acquireTime|renewTime)": )"[^"]*"', r"\1<instant>"),
        (r'("leaseDurationSeconds": )\d+', r"\1<left>"),
        (r"(resourceVersion=|continue=)[^& ]+", r"\1<n>"),
        # Namespaces and names that a test draws.
        (r"\bcontract-[0-9a-f]{8}", "<ns>"),
        (r"\bbegin(!?\w?)/[0-9a-f]{8}", r"begin\1/<name>"),
        (r"\b(job-|kept-|n|h)\d+\b", r"\1<n>"),
        (r"\b127\.0\.0\.1:\d+", "<address>"),
        (r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])", "<digest>"),
        (r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", "<claim>"),
        (r"\b(?:\d{10}\.\d+|\d+\.\d{5,})", "<instant>"),
        (r"(?<![\d.])\d{13,}(\.\d+)?", "<number>"),
        # A float may lie a millionth above.
        (r"(\d)00001'", r"\g<1>00000'"),
        # Ids of a process, a waiter or a server: random digits.
        (
            r"(?<![0-9a-f%.<])(?<!x')(?!\d+000\b)(?:[0-9a-f]{16}|[0-9a-f]{12}|[0-9a-f]{8})(?![0-9a-f])",
            "<id>",
        ),
        # A look at the history, which one take in a few has beside it.
        (r', {"request_range": {"key": "[^"]*/h/", [^{}]*"keys_only": true}}', ""),
        # How often a server was used before.
        (r"(<claim>):\d+", r"\1:<n>"),
        (r"((?:revision|applied|term)\\?\": ?\\?\"?)[1-9]\d*", r"\1<n>"),
        (r"(/h/<id>)/\d+", r"\1/<n>"),
        (r"\bSCAN \d+", "SCAN <n>"),
        # The ballots that a field of a quorum knows: how many, contention decides.
        (r" s(?: <number>)+", " s <numbers>"),
        # What the one of several writers wrote that came first.
        (r"('<ns>/job', 'state', x'3)\d'", r"\1<n>'"),
        (r"(f:state =?<number>) \d\b", r"\1 <n>"),
        # The longest ttl that a quorum knows of.
        (r"(incumbent1 3:<id> 0) \d+ 0\b", r"\1 <longest> 0"),
        (r"(incumbent1 3:<id>  ?)\d{5,} (?=[a-z]:)", r"\1<longest> "),
        (r"(incumbent1 3:<id>  0) \d{5,}\b", r"\1 <longest>"),
        # What the rules made of a record: of several writers which came first, and when.
        (r'"written":\{.*?\},"entries":', '"written":<record>,"entries":'),
        (
            r'"past":(?:null|\[.*?\]),"joined":(?:null|\[.*?\]),"alone"',
            '"past":<past>,"joined":<joined>,"alone"',
        ),
        (r'"version":(?:0|<number>),"epoch"', '"version":<version>,"epoch"'),
        (r'"incumbent1 <id> \{.*?\}",(null|\d+)\]', r'"<value>",\1]'),
        (r'("looks_in":)\d+', r"\1<left>"),
        # What is left of a time.
        (r"(changed\(\$1, \$2, \$3\) \(.*), '\d+'", r"\1, '<left>'"),
    )
]


# Of SQLite's statements, too: microseconds since the host's boot, and the text of a record.
_STATEMENT = re.compile(r"(?:UPDATE|INSERT|DELETE|SELECT)\b")
# First: how long ago the boot was decides how many digits these have, and twelve look like an id.
_SINCE_BOOT = [(re.compile(r"(?<=[ (,])\d{4,12}(?<!000)(?=[,) ]|$)"), "<instant>")]
_OF_A_RECORD = [(re.compile(r"\bX'[0-9A-F]{24,}'", re.IGNORECASE), "x'<text>'")]


def normal(request: str) -> str:
    """The request as it is the same in every run."""
    rules = _SINCE_BOOT + _RULES + _OF_A_RECORD if _STATEMENT.match(request) else _RULES
    for pattern, name in rules:
        request = pattern.sub(name, request)
    return request
