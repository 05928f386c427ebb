"""A job file: every setting, and every problem with its place."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.cron.jobfile import cut_pieces, parse_jobfile
from incumbent.cron.schedule import Every, FixedTimes
from incumbent.cron.spec import DEFAULTS, SETTINGS, CatchUp, JobSpec

WHOLE = """\
[defaults]
timezone = "Europe/Berlin"
env = { LANG = "C", A = "1" }
retries = 2

[[job]]
name = "nightly/bill"
schedule = "30 5 * * *"
command = ["curl", "-fsS", "http://x/"]
cwd = "/srv"
at_most_for = "5m"
at_least_for = 30
retries = 3
retry_backoff = "1m"
catch_up = "all"
catch_up_limit = 5
catch_up_window = "6h"
overlap = "queue"
jitter = "20s"
success_codes = [0, 3]
keep_output = 1024
on_failure = "mail -s failed ops"
notify = "https://hooks.example/x"
ping = "https://hc.example/y"
keep_runs = 20
keep_for = "7d"
[job.env]
A = "2"

[[job]]
name = "tick"
every = "15s"
timezone = "UTC"
command = "date | cat"
on_failure = ["false"]

[[job]]
name = "feast"
at = [2026-12-31T23:00:00Z, "2026-12-24T18:00:00+01:00"]
command = ["true"]

[[job]]
name = "second"
schedule = "*/10 * * * * *"
command = ["true"]
"""


def read(text: str) -> tuple[JobSpec, ...]:
    specs, problems = parse_jobfile(text, "jobs.toml")
    assert problems == ()
    return specs


def wrong(text: str) -> list[str]:
    _, problems = parse_jobfile(text, "jobs.toml")
    return [str(it).removeprefix("jobs.toml:") for it in problems]


def test_every_setting_reaches_the_job() -> None:
    job = read(WHOLE)[0]
    assert job.name == "nightly/bill"
    assert job.schedule.describe() == "30 5 * * * (Europe/Berlin)"
    assert job.argv == job.command == ("curl", "-fsS", "http://x/")
    assert dict(job.env) == {"LANG": "C", "A": "2"}
    assert (job.cwd, job.at_most_for, job.at_least_for) == ("/srv", 300.0, 30.0)
    assert (job.retries, job.retry_backoff) == (3, 60.0)
    assert job.catch_up == CatchUp("all", 5, 6 * 3600.0)
    assert (job.overlap, job.jitter, job.success_codes) == ("queue", 20.0, frozenset({0, 3}))
    assert (job.keep_output, job.keep_runs, job.keep_for) == (1024, 20, 7 * 86_400.0)
    assert job.on_failure == ("/bin/sh", "-c", "mail -s failed ops")
    assert str(job.notify) == "hooks.example"
    assert job.ping is not None
    assert (str(job.ping.success), job.ping.codes) == ("hc.example", True)
    assert job.source == "jobs.toml:6"
    assert job.command_at == (9, 1)


def test_a_job_has_the_defaults_it_does_not_set() -> None:
    _, tick, feast, second = read(WHOLE)
    assert tick.retries == feast.retries == 2
    assert dict(tick.env) == {"LANG": "C", "A": "1"}
    assert (tick.timezone, feast.timezone) == ("UTC", "Europe/Berlin")
    assert second.schedule.describe() == "*/10 * * * * * (Europe/Berlin)"


def test_a_text_is_for_the_shell_and_a_list_is_not() -> None:
    _, tick, *_ = read(WHOLE)
    assert tick.argv == ("/bin/sh", "-c", "date | cat")
    assert tick.on_failure == ("false",)


def test_intervals_and_fixed_times_are_schedules() -> None:
    _, tick, feast, _ = read(WHOLE)
    assert tick.schedule == Every(15.0)
    christmas = datetime.fromisoformat("2026-12-24T17:00:00Z").timestamp()
    new_year = datetime.fromisoformat("2026-12-31T23:00:00Z").timestamp()
    assert feast.schedule == FixedTimes((christmas, new_year))


def test_the_settings_are_those_of_the_whole_example() -> None:
    assert {key for key in SETTINGS if f"\n{key} =" not in WHOLE} == set()
    assert DEFAULTS.keys() < SETTINGS.keys()


# -- problems --------------------------------------------------------------------------------------


def job(*lines: str, name: str = 'name = "a"', when: str = 'every = "15s"') -> str:
    return "\n".join(["[[job]]", name, when, 'command = ["true"]', *lines])


PROBLEMS = [
    (job("retrys = 1"), "5:1: unknown key 'retrys'; did you mean retries?"),
    (job("colour = 1"), "5:1: unknown key 'colour'"),
    ("[default]\n" + job(), "1:1: unknown key 'default'; did you mean defaults?"),
    ("jobs = 1\n" + job(), "1:1: unknown key 'jobs'; did you mean job?"),
    ('[defaults]\nname = "x"\n' + job(), "2:1: unknown key 'name' (only a [[job]] has it)"),
    ("[defaults]\nretries = -1\n" + job(), "2:1: retries: a whole number from 0 to 100"),
    (job("retries = true"), "5:1: retries: a whole number"),
    (job('at_most_for = "soon"'), "5:1: at_most_for='soon' is not a duration"),
    (job("at_most_for = inf"), "5:1: at_most_for=inf is out of range"),
    (job("at_most_for = 5", "at_least_for = 6"), "6:1: at_least_for=6s is above at_most_for=5s"),
    ("[defaults]\nat_most_for=5\n" + job("at_least_for = 6"), "7:1: at_least_for=6s is above"),
    (job('jitter = "15s"'), "5:1: jitter=15s must be below every=15s"),
    (job('timezone = "Europe/Berln"'), "5:1: 'Europe/Berln' is not a time zone; did you mean"),
    (job('overlap = "wait"'), "5:1: overlap='wait': one of skip, queue"),
    (job('catch_up = "some"'), "5:1: catch_up='some': one of no, last, all"),
    (job("catch_up_limit = 5"), "5:1: catch_up_limit says nothing without catch_up"),
    (job("seconds = true"), "5:1: unknown key 'seconds': a schedule with seconds has six fields"),
    (job("success_codes = [0, 256]"), "5:1: success_codes: a whole number from 0 to 255"),
    (job("success_codes = []"), "5:1: success_codes: a list of exit codes"),
    (job("env = { A = 1 }"), "5:1: env.A: a text in quotes, not '1' (int)"),
    (job("[job.env]", "A = 1"), "6:1: env.A: a text in quotes"),
    (job('env.A = "1"', "env.B = 2"), "6:1: env.B: a text in quotes"),
    (job("on_failure = 5"), "5:1: on_failure: a list such as"),
    (job(name=""), "1:1: a job needs 'name'"),
    (job(name='name = "a b"'), "2:1: 'a b' is not a name"),
    (job(name="name = 5"), "2:1: a value of type int is not a name"),
    (job(when=""), "1:1: a job needs one of schedule, every, at; it has none"),
    (job(when='every = "15s"\nat = []'), "4:1: at: a list such as"),
    (job(when='every = "15s"\nschedule = "@daily"'), "4:1: a job needs one of"),
    (job(when='every = "0.5s"'), "3:1: every='0.5s' is out of range"),
    (job(when="at = [2026-12-24]"), "3:1: '2026-12-24' is not a date and time"),
    (job(when="at = [2026-12-24T18:00:00]"), "3:1: 2026-12-24T18:00:00 has no zone"),
    (job(when='at = ["2026-01-01T00Z", 2026-01-01T01:00:00+01:00]'), "3:1: at: the same instant"),
    (job(when='schedule = "0 0 30 2 *"'), "3:17: '30': no such day in the months"),
    (job(when='schedule   =  "0 25 * * *"'), "3:18: '25' is not a hour"),
    (job(when='schedule = "0\\t25 * * *"'), "3:12: '25' is not a hour"),
    (job(when='schedule = "0 5 * *"'), "3:13: a schedule has 5 fields, or 6 with seconds"),
    (job(when='schedule = "@every 5m"'), "3:13: @every is not cron"),
    (job() + "\n" + job(), "6:1: the name 'a' is that of the job in line 1 too"),
    ("[job]\nname = 'a'", "1:1: job: write [[job]]"),
    ("job = 5", "1:1: job: write [[job]]"),
    ("defaults = 5\n" + job(), "1:1: defaults: a table"),
    ("[[job]]\nname = ", "2:8: this is not TOML: Invalid value"),
    ("[[job]\n", "1:6: this is not TOML"),
    (job('name = "b"'), "5:11: this is not TOML: Cannot overwrite a value"),
    ("a = [", "1:6: this is not TOML"),
]


@pytest.mark.parametrize(("text", "said"), PROBLEMS)
def test_a_problem_names_its_place(text: str, said: str) -> None:
    found = wrong(text)
    assert [it for it in found if it.startswith(said)] != [], found
    assert len(found) <= 2


@pytest.mark.parametrize(
    "command", ["5", '""', "[]", '[""]', "[1]", '"  "', '["a", 1]', '"a\\u0000b"', '["a\\u0000b"]']
)
def test_a_command_is_a_list_or_a_line(command: str) -> None:
    text = f'[[job]]\nname = "a"\nevery = 5\ncommand = {command}\n'
    (problem,) = wrong(text)
    assert problem.startswith("4:1: command: ")


def test_all_problems_of_all_jobs_are_told() -> None:
    text = "\n".join([job("retrys = 1"), job("colour = 2", 'overlap = "x"'), "[x]"])
    _, problems = parse_jobfile(text, "jobs.toml")
    places = sorted((it.line, it.column) for it in problems)
    assert places == [(5, 1), (7, 1), (10, 1), (11, 1), (12, 1)]


def test_keys_are_found_past_strings_comments_and_brackets() -> None:
    text = '''\
# [[job]] not = "here"
a."b.c".d = """
[[job]]
x = 1 \\""" still""""
[[job]]   # one
"quoted" = ['[', "]", # ]
  { k = 5 }]
lit = \'\'\'
# ' " [ \'\'\'
[job.env]
  deep = 1
[[job]]
last=1'''
    before, one, two = cut_pieces(text)
    assert before.place("a") == (2, 1)
    assert one.place() == (5, 1)
    assert one.place("quoted") == (6, 1)
    assert one.place("lit") == (8, 1)
    assert one.place("env", "deep") == (11, 3)
    assert two.place("last") == (13, 1)
    assert two.place("nothing") == (12, 1)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    _, problems = parse_jobfile(text, "jobs.toml")
    assert all(it.line >= 1 and it.column >= 1 for it in problems)


values = st.recursive(
    st.sampled_from(["1", "-1", "nan", "true", '"x"', '""', '"5s"', '"@daily"', "2026-12-24"]),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda it: f"[{', '.join(it)}]")
        | inner.map(lambda it: f"{{ A = {it} }}")
    ),
    max_leaves=3,
)


@given(st.dictionaries(st.sampled_from(sorted(SETTINGS)), values))
def test_any_value_of_any_setting_is_read_or_refused(table: dict[str, str]) -> None:
    text = "\n".join(["[[job]]", *(f"{key} = {value}" for key, value in table.items())])
    specs, problems = parse_jobfile(text, "jobs.toml")
    assert specs or problems


def told(text: str) -> list[str]:
    return [f"{it.line}:{it.column} {it.text}" for it in parse_jobfile(text, "f.toml")[1]]


def test_a_table_that_is_not_toml_hides_nothing_of_the_others() -> None:
    said = told(
        '[[job]]\nname = "a"\ncommand = "x"\nevery = "1x"\n'
        '[[job]]\nname = "b\ncommand = "y"\nevery = "5s"\n'
        '[[job]]\nname = "c"\ncomand = "y"\nevery = "5s"\n'
        '[[job]]\nname = "d"\ncommand = ["y",\nevery = "5s"\n'
        '[[job]]\nname = "a"\ncommand = "x"\nevery = "1s"\n'
    )
    assert [line.split()[0] for line in said] == ["4:1", "6:10", "9:1", "11:1", "16:1", "18:1"]
    assert [("not TOML" in line) for line in said] == [False, True, False, False, True, False]


def test_without_readable_defaults_nothing_is_said_that_they_might_change() -> None:
    job = '[[job]]\nname = "a"\ncommand = "x"\nevery = "1s"\ncatch_up_limit = 3\nnme = 1\n'
    said = told(f'[defaults\ncatch_up = "all"\n{job}')
    assert len(said) == 2
    assert said[0].startswith("1:10 this is not TOML")
    assert "unknown key 'nme'" in said[1]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ('[[job]]\nname = "a"\nevery = 0\n[[job]]\nname = """b\n[[job]]\nevery = 0\n', "1:1"),
        ("x = [1,\n", "2:1"),
        ("[[job]]\nname = 1\nname = 2\n", "3:9"),
        ("[[job]]\n" + "a = " + "[" * 10_000 + "\n", "3:1"),
    ],
)
def test_what_is_not_closed_is_told_wherever_it_is_found(text: str, first: str) -> None:
    said = told(text)
    assert any("not TOML" in line for line in said)
    assert said[0].split()[0] == first
