"""What of a log is sent at once: what a restart waits for, and not each step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.agent.reports.report_changes import news_of
from kcover_ebpf.api.log_report import AnnouncedPhase, ContainerLog, PrintedProgress
from kcover_ebpf.model.silence_summary import StartWait
from tests.unit.support import report_builders as build

PROGRESS = PrintedProgress(step=7, age_s=1.0, checkpoint_step=5, checkpoint_age_s=20.0)
LOG = ContainerLog("uid-0", "main", 0, progress=PROGRESS)
CHANGES = {
    "a checkpoint is being written": (
        replace(LOG, progress=replace(PROGRESS, saving_age_s=0.1)),
        True,
    ),
    "a checkpoint is complete": (
        replace(LOG, progress=replace(PROGRESS, checkpoint_step=7, checkpoint_age_s=0.1)),
        True,
    ),
    "a phase begins": (replace(LOG, phase=AnnouncedPhase("checkpoint", 60.0)), True),
    "a step": (replace(LOG, progress=replace(PROGRESS, step=8, age_s=0.1)), False),
    "time": (LOG.later(1.0), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_news_of__a_checkpoint_is_news_and_a_step_is_none(change: str) -> None:
    log, is_news = CHANGES[change]
    report = build.report("n0").report
    before, after = (news_of(replace(report, logs=(entry,))) for entry in (LOG, log))
    assert (before != after) is is_news


def test_news_of__a_wait_at_the_start_is_news_and_its_age_is_none() -> None:
    report = build.report("n0").report
    begun = replace(report, start_wait=StartWait(3.0, 8, 64))
    assert news_of(report) != news_of(begun)
    assert news_of(begun) == news_of(replace(report, start_wait=StartWait(9.0, 8, 64)))
