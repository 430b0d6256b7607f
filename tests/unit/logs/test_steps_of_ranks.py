"""Ranks that write to one log are at different steps: a traceback is at that of the rank that raised it."""

from __future__ import annotations

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.log_report import LoggedTraceback
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.log_files import Chunk

NOW_S = rfc3339.from_text("2026-11-22T10:01:00Z")
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 71, in main',
    "    loss = model(batch)",
    "ValueError: expected 4 channels",
)


def cri(text: str, *, at: str = "10:00:00", stream: str = "stderr") -> bytes:
    return f"2026-11-22T{at}.5Z {stream} F {text}\n".encode()


def found_of(*blocks: bytes) -> LoggedTraceback:
    reader = ContainerLogReader("uid", "main", ())
    for block in blocks:
        reader.feed(Chunk(0, block), NOW_S)
    shown = reader.summary(NOW_S)
    assert shown is not None
    (traceback,) = shown.tracebacks
    return traceback


OF_RANKS = {
    "its own step, and not that of a rank that is ahead": (
        ["[default1]:step 20", "[default0]:step 21"], "[default1]:", 20,
    ),
    "also where the traceback names the process more exactly": (
        ["[default1]:step 20", "[default0]:step 21"], "[default1]:[rank9]: ", 20,
    ),
    "that of the log, where the process itself prints none": (
        ["[default0]:step 20", "[default0]:step 21"], "[default1]:", 21,
    ),
    "that of the log, where its lines have no name": (["step 20", "step 21"], "[rank1]: ", 21),
    "a name that only begins alike is another process": (
        ["[rank1]: step 20", "[rank12]: step 21"], "[rank1]: ", 20,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "name", "step"), OF_RANKS.values(), ids=OF_RANKS)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("is_late", [False, True])
def test_steps_of_ranks__a_traceback_is_at_that_of_the_rank_that_raised_it(
    before: list[str], name: str, step: int, stream: str, is_late: bool
) -> None:
    raised = b"".join(cri(f"{name}{line}") for line in TRACEBACK)
    ahead = cri(before[1], stream=stream)
    log = [raised, ahead] if is_late and stream == "stdout" else [ahead, raised]
    found = found_of(cri(before[0], stream=stream, at="09:59:59"), *log)
    assert found.step == step
