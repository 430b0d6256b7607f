"""The files that a job's output goes to, followed while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.api.job_rules import JobRule, RuleAction
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.errors import PolicyError, UsageError
from kcover_ebpf.facts.logs import LogSeen
from kcover_ebpf.ids import NS
from kcover_ebpf.run import options
from kcover_ebpf.run.job_log import JobLog

TRAINS = JobRule("trains", KnownLine.LOSS, within_seconds=60, every_seconds=20)
RESTARTS = JobRule(
    "restarts", KnownLine.LOSS, within_seconds=60, every_seconds=20, action=RuleAction.RESTART
)


class Followed:
    """A log, and a clock that a test sets."""

    def __init__(self, path: Path, *rules: JobRule) -> None:
        self.path, self.boottime_ns = path, 10_000 * NS
        self.log = JobLog([path], rules, 3600.0, boottime_ns=lambda: self.boottime_ns)

    def after(self, seconds: int, text: str = "") -> LogSeen | None:
        """The last news after that time with a pass each second; `text` is written before the last pass."""
        news = [self.after_pause(1) for _ in range(seconds - 1)]
        news.append(self.after_pause(1, text))
        return next((seen for seen in reversed(news) if seen is not None), None)

    def after_pause(self, seconds: float, text: str = "") -> LogSeen | None:
        """The same without a pass meanwhile."""
        self.boottime_ns += round(seconds * NS)
        with self.path.open("a") as file:
            file.write(text)
        return self.log.read()


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    (tmp_path / "train.log").write_text("step 900 loss: 1.0\n")
    made = Followed(tmp_path / "train.log", RESTARTS)
    made.log.begin()
    yield made
    made.log.close()


def test_read__what_was_there_before_the_start_does_not_count(followed: Followed) -> None:
    seen = followed.after(1)
    assert seen is not None
    assert (seen.step, seen.moved_ns, seen.broken) == (None, None, ())


def test_read__the_same_as_before_is_no_news(followed: Followed) -> None:
    first = followed.after(1, "step 1 loss: 2.0\n")
    assert first is not None
    assert first.step == 1
    assert followed.after(1) is None
    later = followed.after(1, "step 2 loss: 2.0\n")
    assert later is not None
    assert later.moved_ns is not None
    assert first.moved_ns is not None
    assert later.moved_ns - first.moved_ns == pytest.approx(2 * NS, abs=0.2 * NS)


def test_read__a_line_that_stops_breaks_the_rule_that_expects_it(followed: Followed) -> None:
    assert followed.after(30, "step 1 loss: 2.0\n") is not None
    assert followed.after(15) is None
    seen = followed.after(10)
    assert seen is not None
    (rule,) = seen.broken
    assert rule.restarts
    assert rule.text == "rule restarts: the last such line came 25 s ago"
    well = followed.after(1, "step 2 loss: 2.0\n")
    assert well is not None
    assert well.broken == ()


def test_read__time_without_a_pass_is_no_silence(followed: Followed) -> None:
    """As after a SIGSTOP of the job and of this run, or a pause of the virtual machine."""
    assert followed.after(1, "step 1 loss: 2.0\n") is not None
    assert followed.after(14) is None
    paused = followed.after_pause(3600)
    assert paused is not None
    assert paused.broken == ()
    later = followed.after(1, "step 2 loss: 2.0\n")
    assert later is not None
    assert (later.moved_ns, later.broken) == (later.boottime_ns, ())
    silent = followed.after(21)
    assert silent is not None
    assert [rule.text for rule in silent.broken] == [
        "rule restarts: the last such line came 21 s ago"
    ]


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_read__a_step_of_the_clock_changes_no_age(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    assert followed.after(1, "step 1 loss: 2.0\n") is not None
    now_s = time.time() + step_s
    monkeypatch.setattr(time, "time", lambda: now_s)
    assert followed.after(1) is None
    seen = followed.after(1, "step 2 loss: 2.0\n")
    assert seen is not None
    assert (seen.moved_ns, seen.broken) == (seen.boottime_ns, ())


def test_read__a_line_with_a_time_of_its_own_is_not_of_the_future(followed: Followed) -> None:
    """The time is by a clock that has been stepped since, or that continued while the job was suspended."""
    seen = followed.after(1, "2096-01-01T00:00:00Z stdout F step 1 loss: 2.0\n")
    assert seen is not None
    assert seen.moved_ns == seen.boottime_ns
    assert followed.after(19) is None
    silent = followed.after(2)
    assert silent is not None
    assert (silent.moved_ns, len(silent.broken)) == (seen.moved_ns, 1)


def test_read__a_line_that_never_comes(followed: Followed) -> None:
    assert followed.after(59) is not None
    seen = followed.after(5)
    assert seen is not None
    assert [rule.text for rule in seen.broken] == [
        "rule restarts: no such line within 64 s of the start"
    ]


def test_read__a_job_that_runs_already_misses_no_first_line(tmp_path: Path) -> None:
    followed = Followed(tmp_path / "train.log", TRAINS)
    followed.log.begin(is_first=False)
    seen = followed.after(500)
    assert seen is not None
    assert seen.broken == ()


def test_read__a_file_that_is_cut_or_replaced_is_read_from_its_beginning(
    followed: Followed,
) -> None:
    assert followed.after(1, "step 1 loss: 2.0\n" * 10) is not None
    followed.path.write_text("step 7 loss: 2.0\n")
    cut = followed.after(1)
    assert cut is not None
    assert cut.step == 7
    followed.path.unlink()
    assert followed.after(1, "step 8 loss: 2.0\n") is not None


def test_read__a_phase_that_the_program_announces(followed: Followed) -> None:
    seen = followed.after(1, "kcover: phase evaluation up to 900 s\n")
    assert seen is not None
    assert seen.phase_until_ns is not None
    assert seen.phase_until_ns - seen.boottime_ns == pytest.approx(900 * NS, abs=0.2 * NS)
    ended = followed.after(1, "kcover: phase evaluation ends\n")
    assert ended is not None
    assert ended.phase_until_ns is None


def test_made_progress__by_the_start_that_runs(followed: Followed) -> None:
    found = [followed.log.made_progress]
    assert followed.after(1, "step 1 loss: 2.0\n") is not None
    found.append(followed.log.made_progress)
    followed.boottime_ns += 5 * NS
    followed.log.begin()
    assert [*found, followed.log.made_progress] == [False, True, False]


def test_made_progress__of_a_log_that_never_said_a_step_is_not_known(tmp_path: Path) -> None:
    followed = Followed(tmp_path / "train.log")
    followed.log.begin()
    assert followed.after(1, "hello\n") is not None
    found = [followed.log.made_progress]
    assert followed.after(1, "step 1\n") is not None
    assert [*found, followed.log.made_progress] == [None, True]


def test_make_settings__job_rules_are_a_part_of_a_policy(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'stopped = "7s"\n[[job_rule]]\nname = "trains"\nline = "loss"\nwithin_seconds = 60\nevery_seconds = 20\n'
    )
    settings, rules = options.make_settings("observe", policy, None)
    assert (settings.policy.stopped_s, rules) == (7.0, (TRAINS,))
    policy.write_text('[[job_rule]]\nname = "trains"\nline = "hue"\n')
    with pytest.raises(PolicyError, match="trains: 'hue' is not a valid"):
        options.make_settings("observe", policy, None)


def test_check_logs__rules_need_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="need --log FILE"):
        options.check_logs((), (TRAINS,))
    with pytest.raises(UsageError, match="is not a file"):
        options.check_logs((tmp_path,), ())
    options.check_logs((tmp_path / "later.log",), (TRAINS,))


@pytest.mark.parametrize("logs", [(), (Path("train.log"),)])
def test_check_logs__a_job_on_several_hosts_has_none_that_is_read(logs: tuple[Path, ...]) -> None:
    with pytest.raises(UsageError, match="--join reads no logs: leave out --log"):
        options.check_logs(logs, (TRAINS,), joins=True)
    options.check_logs((), (), joins=True)
