"""Statuses of incidents with another verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kcover_ebpf.api.incident import Status
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind


def judged(status: Status, **changes: Any) -> Status:
    """The status, its verdict changed in these fields; one that has none gets one."""
    verdict = status.verdict or Verdict(VerdictKind.UNKNOWN, Cause.UNKNOWN)
    return replace(status, verdict=replace(verdict, **changes))
