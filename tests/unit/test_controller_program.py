"""The controller as a program: its log, and what /healthz says of its threads."""

from __future__ import annotations

import io
import logging

from kcover_ebpf.cli.controller import OneLine


def test_log__a_message_is_one_line_whatever_names_are_in_it() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    log = logging.getLogger("test one line")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.info("thread %s", "a\nINFO ml/llm Recovered \x1b[2J")
    assert out.getvalue() == "INFO thread a\\nINFO ml/llm Recovered \\x1b[2J\n"
    try:
        raise ValueError("x")
    except ValueError:
        log.exception("bad")
    assert "Traceback" in out.getvalue()
