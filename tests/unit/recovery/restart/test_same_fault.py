"""Whether a fault is that of an incident, or of the run after its restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api.incident import Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.model.verdict import Cause, Culprit, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import same_fault
from kcover_ebpf.recovery.restart.context import GangPod, RestartInput
from kcover_ebpf.recovery.restart.steps import RestartDetail, Step
from tests.unit.support.guard_inputs import world
from tests.unit.support.report_builders import NOW_S, pod, report

RETURNED_S = NOW_S - 20.0
STARTED_S = NOW_S - 60.0
HANG, END = VerdictKind.HUNG, VerdictKind.CRASHED
OWN = Culprit(rank=1, pid=100, pod_uid=pod(1).uid, node="b")
GONE = replace(OWN, pod_uid="of-the-old-run")
OF_EVENT = Culprit(pod_uid=pod(1).uid, node="b")


def restarted(spoke_s: float = NOW_S - 1.0) -> RestartInput:
    """A job whose pods started one minute ago; the node of rank 1 spoke at `spoke_s`."""
    seen = report("a", arrived_s=NOW_S - 1.0), report("b", arrived_s=spoke_s)
    return replace(world(), pods=tuple(map(_started, range(4))), reports=seen)


def _started(number: int) -> GangPod:
    made = pod(number)
    containers = tuple(replace(one, started_s=STARTED_S) for one in made.containers)
    return GangPod(replace(made, containers=containers))


def fault(kind: VerdictKind, since_s: float, culprit: Culprit | None = OWN) -> GangVerdict:
    return GangVerdict(Verdict(kind, Cause.UNKNOWN, NOW_S, since_s, culprit=culprit))


@pytest.mark.parametrize(
    ("kind", "since_s", "culprit", "is_new"),
    [
        pytest.param(HANG, RETURNED_S + 1.0, OWN, True, id="after the return"),
        pytest.param(END, RETURNED_S + 1.0, GONE, True, id="the end of a pod that was deleted"),
        pytest.param(HANG, RETURNED_S - 5.0, OWN, True, id="while other pods start"),
        pytest.param(HANG, RETURNED_S - 5.0, None, True, id="of an unknown rank"),
        pytest.param(HANG, STARTED_S - 9.0, OWN, False, id="before the start: a port that is down"),
        pytest.param(HANG, RETURNED_S - 5.0, GONE, False, id="of an old pod"),
        pytest.param(END, RETURNED_S - 5.0, OWN, True, id="of a process, while other pods start"),
        pytest.param(END, STARTED_S + 1.0, OWN, False, id="the clock of a kubelet may be slow"),
        pytest.param(END, STARTED_S - 1.0, OWN, False, id="the end of an old process"),
        pytest.param(END, RETURNED_S - 5.0, OF_EVENT, False, id="an Event that was written late"),
    ],
)
def test_is_of_new_run__a_fault_belongs_to_the_ranks_that_have_it(
    kind: VerdictKind, since_s: float, culprit: Culprit | None, *, is_new: bool
) -> None:
    gang_verdict = fault(kind, since_s, culprit)
    assert same_fault.is_of_new_run(gang_verdict, restarted(), RETURNED_S) is is_new


def test_is_of_new_run__a_hang_that_its_node_has_not_reported_since_is_that_of_old_ranks() -> None:
    before = restarted(spoke_s=RETURNED_S - 1.0)
    assert not same_fault.is_of_new_run(fault(HANG, RETURNED_S - 5.0), before, RETURNED_S)


@pytest.mark.parametrize(
    ("phase", "since_s", "is_same"),
    [
        (Phase.RECOVERED, RETURNED_S + 5.0, False),
        (Phase.RECOVERED, STARTED_S - 9.0, True),
        (Phase.FAILED, RETURNED_S + 5.0, True),
        (Phase.FAILED, NOW_S - 9.0, False),
        (Phase.OBSERVED, RETURNED_S + 5.0, True),
    ],
)
def test_is_same__only_a_recovery_divides_faults_at_the_return(
    phase: Phase, since_s: float, *, is_same: bool
) -> None:
    """The last line of the timeline is ten seconds later."""
    detail = RestartDetail(pods=4, returned_s=RETURNED_S).words()
    action = RestartAction(RestartMethod.IN_PLACE, Step.DONE.value, 1, RETURNED_S, "hung", detail)
    status = Status(Phase.OPEN, action=action).enter(phase, RETURNED_S + 10.0, "x")
    assert same_fault.is_same(status, fault(HANG, since_s), restarted()) is is_same
