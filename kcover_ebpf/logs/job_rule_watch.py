"""Tracks the rules of a job in the log of one container: when a line last matched, and its number. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kcover_ebpf.api.job_rules import JobRule, compiled, number_groups, number_of
from kcover_ebpf.api.log_report import JobRuleReading
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.logs import lines, scanner


@dataclass(slots=True)
class _Seen:
    last_s: float | None = None
    value: float | None = None
    wrong_count: int = 0
    """Consecutive numbers outside the limits, up to the last number."""


class JobRuleWatch:
    """Takes the lines of one start of a container, as `NormalLines` produces them."""

    def __init__(self, rules: Sequence[JobRule]) -> None:
        self._rules = tuple(rules)
        self._seen = {rule.name: _Seen() for rule in self._rules}
        self._started_s: float | None = None

    def begin(self, started_s: float) -> None:
        """Record that the log is read from its beginning, started at `started_s` (unix seconds).

        Without this call, a missing line is never reported.
        """
        self._started_s = started_s

    def feed(self, block: bytes, now_s: float) -> None:
        """Lines in order; `now_s` is the time of those without one."""
        if not self._rules:
            return
        block = scanner.whole_utf8(block)
        for rule in self._rules:
            seen, pattern = self._seen[rule.name], compiled(rule.expression)
            last_at, groups = -1, number_groups(rule.expression)
            for match in pattern.finditer(block):
                last_at = match.start()
                if rule.has_limits and (value := number_of(match, groups)) is not None:
                    _note(rule, seen, value)
            if last_at >= 0:
                seen.last_s = lines.time_s_at(block, last_at, now_s)

    def forgive(self, seconds: float, now_s: float) -> None:
        """Let this much of the time before `now_s` be no silence; then nothing was later than `now_s`."""
        self._started_s = _later(self._started_s, seconds, now_s)
        for seen in self._seen.values():
            seen.last_s = _later(seen.last_s, seconds, now_s)

    def readings(self, now_s: float) -> tuple[JobRuleReading, ...]:
        """A reading for each rule, with ages before `now_s`."""
        return tuple(self._reading(rule, now_s) for rule in self._rules)

    def _reading(self, rule: JobRule, now_s: float) -> JobRuleReading:
        seen = self._seen[rule.name]
        age_s, started_age_s = _age(now_s, seen.last_s), _age(now_s, self._started_s)
        return JobRuleReading(
            rule=rule.name,
            age_s=age_s,
            started_age_s=started_age_s,
            value=seen.value,
            wrong_count=seen.wrong_count,
            broken=rule.is_late(age_s, started_age_s) or rule.is_off(seen.wrong_count),
        )


def _later(time_s: float | None, seconds: float, now_s: float) -> float | None:
    return None if time_s is None else min(time_s + seconds, now_s)


def _age(now_s: float, time_s: float | None) -> float | None:
    return None if time_s is None else max(0.0, round(now_s - time_s, 3))


def _note(rule: JobRule, seen: _Seen, value: float) -> None:
    # a value that JSON cannot represent only shows in the count
    seen.value = value if value - value == 0 else None
    seen.wrong_count = seen.wrong_count + 1 if rule.is_wrong(value) else 0
