"""The controller as a program: its log, and what /healthz says of its threads."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kcover_ebpf.cli.controller import OneLine
from kcover_ebpf.controller.main import Controller, ControllerOptions
from kcover_ebpf.errors import Unreachable
from kcover_ebpf.kube.reflector import Reflector


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


class Away:
    """A session whose API server does not answer; nothing is asked here."""

    def hurried(self, _: float) -> Away:
        return self

    def _no(self, *_: object) -> dict[str, Any]:
        raise Unreachable("no answer")

    get = list = create = replace = merge_patch = delete = stream = _no


PARTS: dict[str, Callable[[Controller, threading.Thread], None]] = {
    "watch": lambda program, dead: setattr(program._watches[0], "thread", dead),
    "pods": lambda program, dead: setattr(_pods(program), "thread", dead),
    "worker": lambda program, dead: program._workers.append(dead),
    "archive": lambda program, dead: setattr(program._archive, "thread", dead),
    "events": lambda program, dead: setattr(program._story._events, "thread", dead),
    "lease": lambda program, dead: setattr(program._elector, "thread", dead),
}


def _pods(program: Controller) -> Reflector:
    return next(iter(program._gangs._shared.values())).watch


@pytest.mark.parametrize("part", PARTS)
def test_health__a_dead_thread_is_named(part: str) -> None:
    """As an error that nobody expected would leave it."""
    program = Controller(Away(), ControllerOptions("ns", "me", workers=2))  # type: ignore[arg-type]
    assert program._health() == ""
    ended = threading.Thread(target=lambda: None, name=f"the {part} thread")
    ended.start()
    ended.join()
    PARTS[part](program, ended)
    assert program._health() == f"these threads are dead: the {part} thread"
    program.stop()
    assert program._health() == "stopping"
