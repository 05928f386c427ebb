"""What other crons and schedulers know, and what to write instead; steps that do nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incumbent.cron.crontab import parse_crontab
from incumbent.cron.fields import steps_without_effect
from incumbent.cron.jobfile import parse_jobfile
from incumbent.cron.schedule import ScheduleError, cron_schedule

DAY = 86_400.0


@pytest.mark.parametrize(
    ("expression", "instead"),
    [
        ("0 12 ? * *", "write * instead of ?"),
        ("0 0 ? * MON", "write * instead of ?"),
        ("H * * * *", "there is no H: write a number; `jitter`"),
        ("H/15 * * * *", "there is no H"),
        ("H(0-29)/10 * * * *", "there is no H"),
        ("0~30 * * * *", "no random times"),
        ("~ * * * *", "no random times"),
        ("0 0 15W * *", "no nearest weekday (W)"),
        ("0 0 W * *", "no nearest weekday"),
        ("0 0 * * L", "day-of-month; 5L (the last Friday)"),
        ("0 0 L-3 * *", "L and LW belong in day-of-month"),
        ("0 0 * LW *", "L and LW belong in day-of-month"),
        ("0 0 MON#2 * *", "MON#2 (the second Monday) belongs in day-of-week"),
        ("0 0 * * MON#6", "#1 to #5"),
        ("0 22-4 * * *", "it does not wrap: write 22-23,0-4"),
        ("0 23-0 * * *", "write 23,0"),
        ("0 22-4/3 * * *", "write 22,1,4"),
        ("50-10 * * * *", "write 50-59,0-10"),
        ("0 0 28-3 * *", "write 28-31,1-3"),
        ("0 0 * NOV-FEB *", "write 11-12,1-2"),
        ("0 0 * * FRI-MON", "write 5-6,0-1"),
        ("0 0 * * 6-0", "write 6,0"),
        ("0 9,22-4 * * *", "write 22-23,0-4"),
        ("0 0 * * MONDAY", "names have three letters: MON"),
        ("0 0 * SEPTEMBER *", "names have three letters: SEP"),
        ("*/0 * * * *", "a step is at least 1"),
        ("*/ * * * *", "a step is at least 1"),
        ("-*/5 * * * *", "leave out the -"),
        ("0 0 1 1 * * 2027", "there are no years: use `at`"),
        ("CRON_TZ=Europe/Berlin 0 5 * * *", "a zone is no field: write `timezone`"),
        ("TZ=UTC 0 5 * * *", "a zone is no field"),
    ],
)
def test_what_other_programs_know_is_refused_with_what_to_write(
    expression: str, instead: str
) -> None:
    with pytest.raises(ScheduleError) as refused:
        cron_schedule(expression)
    assert instead in str(refused.value)


@pytest.mark.parametrize(
    ("wrapping", "low", "high", "place", "unit"),
    [
        ("{}-{} * * * *", 0, 59, 0, 60.0),
        ("0 {}-{} * * *", 0, 23, 1, 3600.0),
        ("0 0 * * {}-{}", 0, 6, 4, DAY),
    ],
)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_is_advised_for_a_range_that_wraps_is_that_range(
    data: st.DataObject, wrapping: str, low: int, high: int, place: int, unit: float
) -> None:
    first = data.draw(st.integers(low + 1, high))
    last = data.draw(st.integers(low, first - 1))
    words = wrapping.format(first, last).split()
    with pytest.raises(ScheduleError, match="it does not wrap: write") as refused:
        cron_schedule(" ".join(words))
    words[place] = str(refused.value).rpartition("write ")[2]
    schedule, found, size = cron_schedule(" ".join(words)), set[int](), high - low + 1
    due = schedule.next_after(-1.0)
    while due is not None and due < size * unit:
        # The epoch was a Thursday.
        found.add(int(due / unit + 4 * (place == 4)) % size)
        due = schedule.next_after(due)
    assert found == {*range(first, high + 1), *range(low, last + 1)}


@pytest.mark.parametrize(
    ("expression", "place", "said"),
    [
        ("*/90 * * * *", 0, "'*/90': a step of 90 is larger than 0-59, so this is 0 alone"),
        ("*/90 * * * *", 0, 'for every 90 minutes a job file has every = "90m"'),
        ("*/360 * * * *", 0, 'every = "360m"'),
        ("5/90 * * * *", 0, "larger than 5-59, so this is 5 alone"),
        ("0 */36 * * *", 2, 'for every 36 hours a job file has every = "36h"'),
        ("*/90 0 5 * * *", 0, 'every = "90s"'),
        ("0 0 */40 * *", 4, 'every = "40d"'),
        ("0 0 1 */13 *", 6, "'*/13': a step of 13 is larger than 1-12, so this is 1 alone"),
        ("0 0 * * */8", 8, "larger than 0-6"),
        ("10-20/30 * * * *", 0, "larger than 10-20, so this is 10 alone"),
        ("0 0 * JAN-MAR/5 *", 6, "larger than 1-3, so this is 1 alone"),
        ("0,30,*/61 * * * *", 0, "'*/61'"),
        ("0 0 L/2 * *", 4, "the step does nothing, as L is one day"),
    ],
)
def test_a_step_that_does_nothing_is_told_with_its_place(
    expression: str, place: int, said: str
) -> None:
    cron_schedule(expression)
    ((at, text),) = steps_without_effect(expression)
    assert at == place
    assert said in text


@pytest.mark.parametrize(
    "expression",
    [
        *("*/60 * * * *", "0 */24 * * *", "0/60 * * * *", "*/7 * * * *", "0 0 */31 * *"),
        *("0 0 * */12 *", "0 0 * * */7", "10-20/11 * * * *", "0 0 L * *", "0 0 * * MON#2"),
        *("@daily", "5 4 * * SUN"),
    ],
)
def test_a_step_that_means_what_it_says_is_not_mentioned(expression: str) -> None:
    cron_schedule(expression)
    assert steps_without_effect(expression) == []


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("RANDOM_DELAY=45", "RANDOM_DELAY is not used: `jitter` in a job file"),
        ("DELAY=5", "DELAY is not used: `jitter`"),
        ("START_HOURS_RANGE=3-22", "START_HOURS_RANGE is not used: write the hours"),
        ("PERSISTENT=yes", "PERSISTENT is not used: `catch_up"),
        ("BATCH=yes", "BATCH is not used: write `nice`"),
        ("MAILTO=root", "MAILTO is not used: what a job says is kept in its history"),
        ("MAILFROM=cron", "MAILFROM is not used"),
        ("CONTENT_TYPE=text/html", "CONTENT_TYPE is not used"),
        ("NO_MAIL_OUTPUT=1", "NO_MAIL_OUTPUT is not used"),
        ("CRON_MAIL_SUCCESS=never", "CRON_MAIL_SUCCESS is not used"),
        ("CRON_INHERIT_VARIABLES=A B", "CRON_INHERIT_VARIABLES is not used: jobs have the env"),
        ("LOGNAME=bob", "LOGNAME is not used: jobs run as the user of the instance"),
        ("PATH=$PATH:/opt/bin", "cron puts no variables into PATH: `$` stays as it is"),
        ("LOG=${HOME}/log", "cron puts no variables into LOG"),
    ],
)
def test_a_setting_of_another_cron_that_does_nothing_here_is_told(setting: str, said: str) -> None:
    specs, problems = parse_crontab(f"{setting}\n0 5 * * * date\n", "c")
    assert len(specs) == 1
    ((problem),) = problems
    assert problem.warning
    assert (problem.line, problem.column) == (1, 1)
    assert said in problem.text


@pytest.mark.parametrize("setting", ["MAILTO=", 'MAILTO=""', "RANDOM_DELAY=0", "PRICE=5$", "A=b"])
def test_a_setting_that_asks_for_nothing_is_not_mentioned(setting: str) -> None:
    assert parse_crontab(f"{setting}\n0 5 * * * date\n", "c")[1] == ()


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        ("tar czf /b/$(date +%F).tgz /x", True),
        ('echo "$(date -u "+%H:%M")"', True),
        ("date +\\%F", False),
        ("mail -s hello bob%Bob,%%bye%", False),
    ],
)
def test_a_date_that_is_cut_at_its_percent_sign_is_told(command: str, warned: bool) -> None:
    _, problems = parse_crontab(f"15 3 * * * {command}\n", "c")
    assert [problem.warning for problem in problems] == [True] * warned


def test_a_step_is_told_in_crontabs_and_job_files_alike() -> None:
    _, of_crontab = parse_crontab("  */90 * * * * date\n", "c")
    text = '[[job]]\nname = "x"\ncommand = "date"\nschedule = "*/90 * * * *"\n'
    _, of_jobfile = parse_jobfile(text, "j.toml")
    (one,), (other,) = of_crontab, of_jobfile
    assert one.text == other.text
    assert (one.line, one.column) == (1, 3)
    assert (other.line, other.column) == (4, 13)
    assert one.warning
    assert other.warning


@pytest.mark.parametrize(
    ("own", "default", "warned"),
    [
        # The zone of `why --at`, and of what `--check` shows.
        ('every = "90m"\ntimezone = "Europe/Berlin"', "", ""),
        ('every = "90m"\nretry_backoff = "5s"', "", "retry_backoff is not used without retries"),
        ('every = "90m"\nretry_backoff = "5s"', "retries = 2", ""),
        ('every = "90m"\nretry_backoff = "5s"\nretries = 1', "", ""),
        ('every = "90m"', 'retry_backoff = "5s"', ""),
    ],
)
def test_a_setting_of_a_job_that_does_nothing_is_told(own: str, default: str, warned: str) -> None:
    text = f'[defaults]\n{default}\n[[job]]\nname = "x"\ncommand = "date"\n{own}\n'
    specs, problems = parse_jobfile(text, "j.toml")
    assert len(specs) == 1
    assert [problem.warning for problem in problems] == [True] * bool(warned)
    assert all(warned in problem.text for problem in problems)
