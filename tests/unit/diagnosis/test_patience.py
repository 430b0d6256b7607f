"""How long one run of `trace` lasts: until what is found stays, and silence is explained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kcover_ebpf.diagnosis import oneshot
from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.model.verdict import Cause, Culprit, VerdictKind
from kcover_ebpf.trace import passes
from kcover_ebpf.trace.passes import Settling
from kcover_ebpf.watching.loop import Sensor

QUIET = Finding(VerdictKind.WORKING, Cause.STARTING, 0)
STUCK = Finding(VerdictKind.HUNG, Cause.LOADER_STUCK, 0, Culprit(2))
STORING = Finding(VerdictKind.WORKING, Cause.CHECKPOINT, 0)
LOADING = Finding(VerdictKind.WORKING, Cause.LOADING, 0)
COMPUTES = Finding(VerdictKind.WORKING, Cause.COMPUTING, 0)
NAMED = Finding(VerdictKind.UNKNOWN, Cause.COMPUTING, 0, Culprit(2))
SLEEPS = Finding(VerdictKind.WORKING, Cause.SLEEPING, 0)

# what is found at the passes (the last for ever), whether a rank waits for long, or burns a CPU for
# an unknown purpose; passes until it is over
TRACES = {
    "a healthy job": ([QUIET], False, False, 12),
    "a hung job": ([STUCK], True, False, 12),
    "a hung job, one rank burns": ([STUCK], True, True, 12),
    "a silent job is traced until the time is over": ([QUIET], True, False, 40),
    "storage gets time to answer": ([STORING], False, False, 20),
    "a loader's storage too": ([LOADING], False, False, 20),
    "what was found only now must stay": ([QUIET] * 11 + [SLEEPS], False, False, 16),
    "who computes may be waited for": ([COMPUTES], False, False, 20),
    "who is named has been waited for": ([NAMED], False, False, 12),
    "a fault that shows now and then": ([QUIET] * 12 + [STUCK, QUIET, QUIET] * 9, True, False, 22),
    "who burns a CPU may be stuck or not": ([COMPUTES], False, True, 20),
    "a loop in place takes time to detect": ([QUIET] * 13 + [STUCK], False, True, 17),
}


@pytest.mark.parametrize("name", TRACES)
def test_patience__a_trace_lasts_as_long_as_it_must(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, waits, burns, expected = TRACES[name]
    now_s = 0.0
    monkeypatch.setattr(passes, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(oneshot, "finding", lambda job, _history: job.finding())
    monkeypatch.setattr(oneshot, "a_rank_waits", lambda _job, _history: waits)
    monkeypatch.setattr(oneshot, "undecided", lambda _job, _history: burns)
    patience = Settling(PassHistory())
    for number in range(1, 100):
        now_s = number * 0.5
        finding = found[min(number, len(found)) - 1]
        job: Any = SimpleNamespace(finding=lambda finding=finding: finding)
        if patience.is_over(cast(Sensor, SimpleNamespace(job=job)), number):
            break
    assert number == expected
