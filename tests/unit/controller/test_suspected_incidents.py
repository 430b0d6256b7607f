"""A suspicion is an incident that people see: it ends no job, and is over when the job moves."""

from __future__ import annotations

import pytest

from kcover_ebpf.api.incident import Phase
from kcover_ebpf.model.verdict import Cause, Certainty, VerdictKind
from tests.unit.support.reporting_job import KEY, MOVES, SUSPECTED, Cluster


@pytest.mark.parametrize("armed", [True, False])
def test_suspected_incidents__a_suspicion_is_an_incident_until_the_job_moves(
    *, armed: bool
) -> None:
    cluster = Cluster(armed=armed)
    seen = cluster.run(60, *SUSPECTED)
    assert seen is not None
    assert seen.status is not None
    assert seen.status.culprit is not None
    assert (seen.status.kind, seen.status.cause, seen.status.certainty) == (
        VerdictKind.UNKNOWN,
        Cause.BLOCKED_UNKNOWN,
        Certainty.SUSPECTED,
    )
    assert seen.status.culprit.pod == "j-1"
    assert seen.status.verdict is not None
    assert seen.status.verdict.acts_at_s is None
    assert seen.status.verdict.graph[0] == (
        "ranks 0, 2, 3 -> collective -> rank 1 -> a service at 198.51.100.7:443"
    )
    assert (seen.status.phase, seen.status.is_closed) == (Phase.OPEN, False)
    over = cluster.run(20, *MOVES)
    assert over is not None
    assert over.status is not None
    assert over.name == seen.name
    assert (over.status.phase, over.status.is_closed) == (Phase.OBSERVED, True)
    assert over.status.message == "resolved on its own before any action"
    assert over.status.restarts == ()


def test_suspected_incidents__a_new_leader_closes_nothing_before_its_nodes_have_spoken() -> None:
    cluster = Cluster(armed=True)
    assert cluster.run(30, *SUSPECTED) is not None
    cluster.jobs._memory.clear()
    cluster.now_s += 11.0  # the last reports are no longer fresh, and no Lease has confirmed them
    cluster.jobs.reconcile(KEY)
    kept = next(iter(cluster.store.of_gang(KEY)))
    assert kept.status is not None
    assert (kept.status.phase, kept.status.is_closed) == (Phase.OPEN, False)
    cluster.run(1, *SUSPECTED)
    assert cluster.written[-1].phase is Phase.OPEN
