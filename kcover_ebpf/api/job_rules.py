"""Rules that a user sets for a job's log: a line in time, a line at intervals, a number within limits. Pure.

`FaultPolicy.spec.jobRules`, and the same as TOML for `kcover-ebpf logs --job-rules FILE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kcover_ebpf.api.known_lines import PATTERNS, KnownLine
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import PolicyError

if TYPE_CHECKING:
    import re2

MOST_RULES = 8
"""The most rules of one job: each is matched against each line."""
_MOST_PATTERN_CHARS = 500
_MEMORY = 256 << 10
"""The most bytes that RE2 may use for one pattern."""
_VALUE, _MILLIS = b"value", b"millis"
"""Prefixes of the names of groups that contain the number, as it is and in thousandths."""


class RuleAction(Enum):
    """What follows when a rule is broken."""

    OBSERVE = "Observe"
    """The broken rule is reported."""
    RESTART = "Restart"
    """The broken rule is a fault of the job, for which a policy may allow a restart."""


@dataclass(frozen=True, slots=True)
class JobRule:
    """One rule; times in seconds."""

    name: str
    line: KnownLine | None = None
    """A predefined kind of line; None: `pattern` is used."""
    pattern: str = ""
    """RE2, searched in each message; a number is its group `value`."""
    within_seconds: float | None = None
    """The first such line must appear within this time after the start of the job."""
    every_seconds: float | None = None
    """The next such line must appear within this time after the previous one."""
    above: float | None = None
    """The number must be larger; NaN is not."""
    below: float | None = None
    """The number must be smaller; NaN is not."""
    times: int = 3
    """Numbers in a row outside the limits before the rule is broken."""
    action: RuleAction = RuleAction.OBSERVE

    @property
    def is_clock(self) -> bool:
        """True if such a line is a sign of progress: it must appear in time."""
        return self.within_seconds is not None or self.every_seconds is not None

    @property
    def has_limits(self) -> bool:
        """True if the rule limits a number."""
        return self.above is not None or self.below is not None

    def is_wrong(self, value: float) -> bool:
        """True if a number is outside the limits; infinite and NaN always are."""
        # comparisons that are also false for NaN
        is_high = self.above is None or value > self.above
        is_low = self.below is None or value < self.below
        return not (is_high and is_low) or value in (float("inf"), float("-inf"))

    def is_late(self, age_s: float | None, started_age_s: float | None) -> bool:
        """True if a line is overdue.

        `age_s`: of the last line; None if none appeared. `started_age_s`: of the start; None if unknown.
        """
        if age_s is not None:
            return self.every_seconds is not None and age_s > self.every_seconds
        # before the first line, only its own deadline counts
        limit_s = self.within_seconds
        return limit_s is not None and started_age_s is not None and started_age_s > limit_s

    def is_off(self, wrong_count: int) -> bool:
        """True if this many numbers in a row outside the limits break the rule."""
        return self.has_limits and wrong_count >= self.times

    @property
    def expression(self) -> str:
        """The pattern to search for: `pattern`, or that of `line`."""
        return PATTERNS[self.line] if self.line is not None else self.pattern


def checked(rules: Iterable[JobRule]) -> tuple[JobRule, ...]:
    """The same rules; raises `PolicyError`, in one line, for a rule without effect or with an invalid pattern."""
    found = tuple(rules)
    if len(found) > MOST_RULES:
        raise PolicyError(f"jobRules: at most {MOST_RULES} of them")
    if len({rule.name for rule in found}) < len(found):
        raise PolicyError("jobRules: two have the same name")
    for rule in found:
        if reason := _wrong(rule):
            raise PolicyError(f"jobRules: {rule.name or '?'}: {reason}")
    return found


def _wrong(rule: JobRule) -> str:
    if not 0 < len(rule.name) <= 63:
        return "needs a name of at most 63 characters"
    if (rule.line is None) == (not rule.pattern):
        return "needs either line or pattern"
    if len(rule.pattern) > _MOST_PATTERN_CHARS:
        return f"its pattern is longer than {_MOST_PATTERN_CHARS} characters"
    times = (rule.within_seconds, rule.every_seconds)
    if all(seconds is None for seconds in times) and not rule.has_limits:
        return "needs withinSeconds, everySeconds, above or below"
    if any(seconds is not None and not 1 <= seconds <= 1e7 for seconds in times):
        return "withinSeconds and everySeconds are from 1 to 10000000"
    if not 1 <= rule.times <= 1000:
        return "times is from 1 to 1000"
    try:
        groups = number_groups(rule.expression)
    except ValueError as error:
        return str(error)
    if rule.has_limits and not groups:
        return "above and below need a group (?P<value>...) in the pattern"
    return ""


@lru_cache(maxsize=256)
def compiled(expression: str) -> re2._Regexp[bytes]:
    """A rule's pattern, for lines in UTF-8; raises `ValueError` with RE2's message."""
    # imported late: 3 MB that most agents never need
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    options.never_nl = True
    try:
        return re2.compile(expression.encode(), options=options)
    except re2.error as error:
        words = error.args[0]
        text = words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)
        raise ValueError(f"pattern {expression[:80]!r}: {text}") from error


def number_groups(expression: str) -> Mapping[int, float]:
    """Groups of a rule's pattern that contain its number -> their factor. Raises as `compiled` does."""
    # for a pattern of bytes, RE2 names its groups in bytes
    names: Mapping[Any, int] = compiled(expression).groupindex
    return {
        group: 0.001 if name.startswith(_MILLIS) else 1.0
        for name, group in names.items()
        if name.startswith((_VALUE, _MILLIS))
    }


def number_of(match: re2._Match[bytes], groups: Mapping[int, float]) -> float | None:
    """The number in a line; None if it has none, or none that can be parsed."""
    for group, factor in groups.items():
        if (text := match.group(group)) is not None:
            try:
                return float(text.replace(b",", b"")) * factor
            except ValueError:
                return None
    return None


def of_table(table: Mapping[str, Any], where: str) -> tuple[JobRule, ...]:
    """Rules in `[[job_rule]]` tables of a TOML file; raises `PolicyError`, whose text begins with `where`."""
    rows = table.get("job_rule")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PolicyError(f"{where} has no rules: use [[job_rule]] tables")
    try:
        return checked(_of_row(row) for row in rows)
    except PolicyError as error:
        raise PolicyError(f"{where}: {error}") from error


_KINDS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "line": (str,),
    "pattern": (str,),
    "within_seconds": (int, float),
    "every_seconds": (int, float),
    "above": (int, float),
    "below": (int, float),
    "times": (int,),
    "action": (str,),
}


def _of_row(row: Mapping[str, Any]) -> JobRule:
    name = str(row.get("name", "?"))
    known = {field.name for field in fields(JobRule)}
    if unknown := set(row) - known:
        raise PolicyError(
            f"{name}: unknown key {min(unknown)!r}; keys are {', '.join(sorted(known))}"
        )
    for key, value in row.items():
        if isinstance(value, bool) or not isinstance(value, _KINDS[key]):
            raise PolicyError(f"{name}: {key} has the wrong type")
    values = dict(row)
    try:
        if "line" in values:
            values["line"] = KnownLine(values["line"])
        if "action" in values:
            values["action"] = RuleAction(values["action"])
        return JobRule(**values)
    except (ValueError, TypeError) as error:
        raise PolicyError(f"{name}: {error}") from error
