"""Passes of a job that waits for something outside."""

from __future__ import annotations

from kcover_ebpf.ids import NS

from .scripted_job import Stage


def passes(stage: Stage, seconds: float, each: object = None) -> None:
    """Pass by pass; `each` happens before each of them."""
    end_ns = stage.now_ns + int(seconds * NS)
    while stage.now_ns < end_ns:
        if callable(each):
            each()
        stage.one_pass(NS // 4 if stage.job.urgent else NS)
