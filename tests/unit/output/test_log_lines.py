"""The log of agent and controller: one line a message, and what repeats is said once."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from kcover_ebpf.output.log_lines import OneLine, Repeats, about

Lines = tuple[logging.Logger, io.StringIO, list[float]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """A logger, what it wrote, and the time in seconds, which a test may set."""
    out, now_s = io.StringIO(), [0.0]
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    handler.addFilter(Repeats(lambda: now_s[0]))
    log = logging.getLogger("lines")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    yield log, out, now_s
    log.removeHandler(handler)


def test_one_line__a_message_is_one_line_whatever_names_are_in_it(
    lines: Lines,
) -> None:
    log, out, _ = lines
    log.info("thread %s", "a\nINFO ml/llm Recovered \x1b[2J")
    assert out.getvalue() == "INFO thread a\\nINFO ml/llm Recovered \\x1b[2J\n"
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("bad")
    assert "Traceback" in out.getvalue()


def test_about__what_repeats_is_said_once_until_it_changes_or_a_minute_has_passed(
    lines: Lines,
) -> None:
    log, out, now_s = lines
    for now_s[0], error in ((0, "a"), (1, "a"), (2, "b"), (3, "b"), (61, "b"), (63, "b")):
        log.warning("cannot list: %s", error, extra=about("list"))
    assert re.findall(": (.)", out.getvalue()) == ["a", "b", "b"]
    log.warning("cannot list: b", extra=about("watch"))
    log.warning("cannot list: b")
    log.warning("cannot list: b")
    assert len(out.getvalue().splitlines()) == 6


def test_about__subjects_do_not_fill_the_memory(
    lines: Lines,
) -> None:
    log, _, _ = lines
    repeats = log.handlers[0].filters[0]
    assert isinstance(repeats, Repeats)
    for number in range(2000):
        log.warning("pod %d is ignored", number, extra=about(str(number)))
    assert len(repeats._passed) <= 512


def test_one_line__time_is_utc_in_rfc_3339() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "text", None, None)
    record.created = 1_700_000_000.5
    line = OneLine("%(asctime)s %(levelname)s %(message)s").format(record)
    assert re.fullmatch("2023-11-14T22:13:20Z INFO text", line)
