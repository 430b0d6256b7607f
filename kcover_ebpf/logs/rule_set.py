"""Which of many rules know a line, in one pass over it. Pure.

The first of the rules wins. RE2 tries all patterns at once; where its automaton gives up, which it does not report, the
patterns are tried one after the other, so that no line is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import re2

from kcover_ebpf.logs.lines import LogLine, Source
from kcover_ebpf.logs.rules import LogRule

_MEMORY = 8 << 20
"""Bytes that RE2 may take for the automaton of all patterns: the confined reader of logs has 48 MiB in all."""


class RuleSet:
    """The rules of a reader, by the log that they are for."""

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
        """Rules that may know a message and not the same behind a head: others know both."""
        self._anchored_patterns = {
            source: tuple(self._patterns[source][number] for number in numbers)
            for source, numbers in self._anchored.items()
        }

    def first(self, line: LogLine, source: Source) -> LogRule | None:
        """The first rule that knows a line of this log; UNKNOWN tries those of all logs.

        A container's rule may match what its program wrote, or the message without what launchers and loggers put in
        front of it.
        """
        rules = self._rules[source]
        found = _matching(self._patterns[source], line.written)
        if line.text != line.written:
            if line.written.endswith(line.text):
                numbers = self._anchored[source]
                inner = _matching(self._anchored_patterns[source], line.text)
                found += [numbers[index] for index in inner]
            else:  # a record in JSON: what it says is not written so in the line
                found += [
                    index
                    for index in _matching(self._patterns[source], line.text)
                    if rules[index].source is Source.CONTAINER
                ]
        if found:
            return rules[min(found)]
        return first_rule(rules, line, source)


def _may_need_text(rule: LogRule) -> bool:
    return rule.anchored and rule.source is Source.CONTAINER


def first_rule(rules: Iterable[LogRule], line: LogLine, source: Source) -> LogRule | None:
    """The same, one rule after the other."""
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
    """The automaton; None where RE2 refuses the patterns together."""
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
