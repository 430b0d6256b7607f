"""The rules that classify log lines: shipped ones, an operator's TOML file, NPD's JSON."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import re2

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.xid import kmsg_parser
from kcover_ebpf.errors import PolicyError
from kcover_ebpf.logs import scanner
from kcover_ebpf.logs.lines import Source


class RegexMatch(Protocol):
    """The part of re2's match object that is used."""

    def groupdict(self) -> dict[str, str | None]:
        """Group name -> matched text; None for a group that did not take part."""

    def start(self) -> int:
        """Offset of the match in characters, not bytes."""


class Regex(Protocol):
    """The part of a compiled RE2 pattern that is used."""

    def search(self, text: str) -> RegexMatch | None:
        """The first match anywhere in the text; None if there is none."""


class LogDomain(StrEnum):
    """The domain in which the cause lies."""

    HARDWARE = "hardware"
    DRIVER = "driver"
    NETWORK = "network"
    STORAGE = "storage"
    MEMORY = "memory"
    PROGRAM = "program"
    OUTSIDE = "outside"
    """A scheduler, a launcher or a person ended the run; no part of the run is at fault."""


class Severity(StrEnum):
    """Severity of a line: from a note to a fault that ends the job."""

    FATAL = "fatal"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Concerns(StrEnum):
    """Who has to act: the job's owner or the operator of the node."""

    NODE = "node"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class LogRule:
    """A rule: a pattern, and the meaning of the lines that match it."""

    name: str
    source: Source
    """KERNEL or CONTAINER: a rule never applies to a line of the other log."""
    pattern: str
    """RE2 syntax, without look-around and back-references, so that matching takes linear time."""
    regex: Regex
    """`pattern` compiled for str, not bytes."""
    domain: LogDomain
    severity: Severity
    concerns: Concerns
    lasting: bool
    """The fault lasts until a repair or a reboot."""
    meaning: str
    advice: str
    check: str = ""
    """The inspection check that shows whether the fault persists; empty if there is none."""
    generic: bool = False
    """It shows only that a program failed, not why; any other matching rule explains more."""

    follows: bool = False
    """The line reports the consequence of a failure elsewhere, so its process is a victim."""

    @property
    def anchored(self) -> bool:
        """Whether it may match a message but not the same message after other text."""
        return _is_anchored(self.pattern)


_ANCHOR = re.compile(r"\^|\\[AbB]")


@lru_cache(maxsize=4096)
def _is_anchored(pattern: str) -> bool:
    return _ANCHOR.search(pattern) is not None


_MOST_PATTERN_CHARS = 2_000
"""A longer pattern is a mistake, and may take long to compile."""
_MOST_FILE_BYTES = 1 << 20
_Choice = TypeVar("_Choice", LogDomain, Severity, Concerns)
_KEYS = {field.name for field in fields(LogRule)} - {"regex"}


@cache
def shipped() -> tuple[LogRule, ...]:
    """The rules that are part of this package, first match first."""
    return (*_table("kernel.toml", Source.KERNEL), *_table("container.toml", Source.CONTAINER))


def _table(name: str, source: Source) -> tuple[LogRule, ...]:
    # `importlib.resources` imports tempfile and zipfile
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return tuple(_rule(row, source) for row in tomllib.loads(text)["rule"])


def load(path: Path | None) -> tuple[LogRule, ...]:
    """An operator's rules (TOML, or the JSON of a node-problem-detector log monitor), followed by the shipped ones.

    Raises `PolicyError` for a file that cannot be read or is wrong.
    """
    if path is None:
        return shipped()
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"cannot read log rules {path}: {error.strerror}") from error
    if len(raw) > _MOST_FILE_BYTES:
        raise PolicyError(f"log rules {path} are larger than {_MOST_FILE_BYTES >> 20} MiB")
    try:
        text = raw.decode("utf-8")
        is_npd = text.lstrip().startswith("{")
        table = json.loads(text) if is_npd else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"log rules {path} cannot be parsed: {error}") from error
    if isinstance(table, dict) and table.get("plugin") == "custom":
        raise PolicyError(
            f"log rules {path} are a custom plugin monitor, which reads no log: give its programs to "
            "`kcover-ebpf inspect --plugins`"
        )
    rows = table.get("rules" if is_npd else "rule") if isinstance(table, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PolicyError(f"log rules {path} have no list of rules: use [[rule]] tables")
    read = _npd_rule if is_npd else _own_rule
    own = []
    for number, row in enumerate(rows, start=1):
        try:
            own.append(read(row))
        except (ValueError, TypeError) as error:
            raise PolicyError(f"log rules {path}: rule {number}: {error}") from error
    rules = (*own, *shipped())
    try:
        scanner_for(rules)
    except ValueError as error:
        raise PolicyError(f"log rules {path} cannot be searched together: {error}") from error
    return rules


def scanner_for(rules: Iterable[LogRule]) -> re2._Regexp[bytes]:
    """Search for lines that may match a rule or be an Xid or SXid.

    Raises `ValueError` if RE2 cannot combine the patterns.
    """
    return scanner.compiled(_searched(rules))


def test_for(rules: Iterable[LogRule]) -> re2.Set:
    """As `scanner_for`, for one line: shows only whether it may match."""
    return scanner.test(_searched(rules))


def _searched(rules: Iterable[LogRule]) -> list[str]:
    return [kmsg_parser.BEGINS_IN_LOG, *(rule.pattern for rule in rules)]


def compiled(pattern: str) -> Regex:
    """A pattern compiled for str; raises `ValueError` with RE2's reason."""
    options = re2.Options()
    options.log_errors = False
    try:
        regex: Regex = re2.compile(pattern, options=options)
    except re2.error as error:
        raise ValueError(f"pattern {pattern!r}: {scanner.words_of(error)}") from error
    return regex


def _own_rule(row: Mapping[str, Any]) -> LogRule:
    if unknown := set(row) - _KEYS:
        raise ValueError(f"unknown key {min(unknown)!r}; keys are {', '.join(sorted(_KEYS))}")
    if missing := [key for key in ("name", "pattern", "domain", "severity") if key not in row]:
        raise ValueError(f"needs {', '.join(missing)}")
    defaults = {"concerns": "job", "lasting": False}
    source = row.get("source", Source.KERNEL)
    if source not in {Source.KERNEL, Source.CONTAINER}:
        raise ValueError("source must be kernel or container")
    return _rule({**defaults, **row}, Source(source))


def _choice(kind: type[_Choice], key: str, row: Mapping[str, Any]) -> _Choice:
    try:
        return kind(row[key])
    except ValueError as error:
        words = ", ".join(domain.value for domain in kind)
        raise ValueError(f"{key} {row[key]!r} is not one of {words}") from error


def _rule(row: Mapping[str, Any], source: Source) -> LogRule:
    words = {key: row.get(key, "") for key in ("name", "pattern", "meaning", "advice", "check")}
    if not all(isinstance(value, str) for value in words.values()):
        raise TypeError("name, pattern, meaning, advice and check are texts")
    flags = {key: row.get(key, False) for key in ("lasting", "generic", "follows")}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise TypeError("lasting, generic and follows are true or false")
    if len(words["pattern"]) > _MOST_PATTERN_CHARS:
        raise ValueError(f"pattern is longer than {_MOST_PATTERN_CHARS} characters")
    return LogRule(
        name=words["name"],
        source=source,
        pattern=words["pattern"],
        regex=compiled(words["pattern"]),
        domain=_choice(LogDomain, "domain", row),
        severity=_choice(Severity, "severity", row),
        concerns=_choice(Concerns, "concerns", row),
        lasting=flags["lasting"],
        meaning=words["meaning"],
        advice=words["advice"],
        check=words["check"],
        generic=flags["generic"],
        follows=flags["follows"],
    )


def _npd_rule(row: Mapping[str, Any]) -> LogRule:
    """Converts a rule of node-problem-detector's kernel monitor: `type`, `reason`, `pattern`, `condition`."""
    if missing := [key for key in ("type", "reason", "pattern") if key not in row]:
        raise ValueError(f"needs {', '.join(missing)}")
    lasting = row["type"] == "permanent"
    return _rule(
        {
            "name": row["reason"],
            "pattern": row["pattern"],
            "domain": LogDomain.DRIVER,
            "severity": Severity.ERROR if lasting else Severity.WARNING,
            "concerns": Concerns.NODE,
            "lasting": lasting,
            "meaning": f"node-problem-detector's condition {row.get('condition') or row['reason']}",
            "advice": "see the rule's origin in node-problem-detector",
        },
        Source.KERNEL,
    )
