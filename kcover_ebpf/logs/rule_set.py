"""Finds the rules that match a line, in one pass for all rules.

Pure. The first matching rule wins. RE2 tries all patterns at once. If its automaton gives up, which it does not
report, the patterns are tried one by one, so that no line is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import re2

from kcover_ebpf.logs.lines import LogLine, Source
from kcover_ebpf.logs.rules import LogRule

_MEMORY = 8 << 20
"""Bytes that RE2 may use for the automaton of all patterns; the confined reader of logs has 48 MiB
in total."""


class RuleSet:
    """The rules of a reader, grouped by the log that they apply to."""

    def __init__(self, rules: Sequence[LogRule]) -> None:
        self._rules = {
            source: tuple(rule for rule in rules if source in (Source.UNKNOWN, rule.source))
            for source in Source
        }
        self._patterns = {
            source: tuple(rule.pattern for rule in rules) for source, rules in self._rules.items()
        }
        self._anchored = {
            source: tuple(number for number, rule in enumerate(rules) if _may_need_text(rule))
            for source, rules in self._rules.items()
        }
        """Rules that may match a message but not the same message after a head; the others match both."""
        self._anchored_patterns = {
            source: tuple(self._patterns[source][number] for number in numbers)
            for source, numbers in self._anchored.items()
        }

    def first(self, line: LogLine, source: Source) -> LogRule | None:
        """The first rule that matches a line of this log; UNKNOWN tries the rules of all logs.

        A container's rule may match the program's complete text, or the message without the heads of launchers and
        loggers.
        """
        rules = self._rules[source]
        found = _matching(self._patterns[source], line.written)
        if line.text != line.written:
            if line.written.endswith(line.text):
                numbers = self._anchored[source]
                inner = _matching(self._anchored_patterns[source], line.text)
                found += [numbers[index] for index in inner]
            else:  # a JSON record: its message is not contained literally in the line
                found += [
                    index
                    for index in _matching(self._patterns[source], line.text)
                    if rules[index].source is Source.CONTAINER
                ]
        if found:
            return rules[min(found)]
        return first_rule(rules, line, source)


def _may_need_text(rule: LogRule) -> bool:
    return rule.source is Source.CONTAINER and rule.anchored


def first_rule(rules: Iterable[LogRule], line: LogLine, source: Source) -> LogRule | None:
    """As method `first` of `RuleSet`, trying one rule after the other."""
    has_head = line.text != line.written
    for rule in rules:
        if source not in (Source.UNKNOWN, rule.source):
            continue
        if rule.regex.search(line.written):
            return rule
        if has_head and _may_need_text(rule) and rule.regex.search(line.text):
            return rule
    return None


def _matching(patterns: tuple[str, ...], text: str) -> list[int]:
    compiled = _compiled(patterns) if patterns else None
    found: list[int] | None = None if compiled is None else compiled.Match(text)
    return found or []


@lru_cache(maxsize=16)
def _compiled(patterns: tuple[str, ...]) -> re2.Set | None:
    """The automaton; None if RE2 refuses to combine the patterns."""
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    made = re2.Set.SearchSet(options)
    try:
        for pattern in patterns:
            made.Add(pattern)
        made.Compile()
    except re2.error:
        return None
    return made
