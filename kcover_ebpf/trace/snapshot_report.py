"""What a run over the pods of one node sends to be judged with other nodes: the report that an agent would send."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kcover_ebpf.api.fault_report import REPORT, FaultReport, PodRef
from kcover_ebpf.diagnosis import oneshot_waits
from kcover_ebpf.diagnosis.evidence import wait_chain
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.gang import rank_report, report_size, unwatched
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.verdict import Verdict


def made(
    job: Job,
    history: PassHistory,
    verdict: Verdict,
    node: str,
    pods: Mapping[int, str],
    uids: Mapping[str, str],
) -> dict[str, Any]:
    """The report as JSON; `verdict`: of this node alone; `pods`: process to its pod; `uids`: by name of the pod."""
    now_s = time.time()
    of_pid = {Pid(pid): uids[pod] for pid, pod in pods.items() if pod in uids}
    snapshot = oneshot_waits.snapshot_of(job, history)
    getting_on = {
        pid
        for pid, rank in snapshot.ranks.items()
        if oneshot_waits.gets_on(job, rank, wait_chain.follow(snapshot, rank))
    }
    report = FaultReport(
        node=node,
        time_s=now_s,
        sequence=0,
        pods=tuple(PodRef(name, uid) for name, uid in sorted(uids.items())),
        # the person who asks thinks that it is stuck
        suspicious=True,
        trained=job.pace.trained,
        verdict=rank_report.verdict_of(
            verdict, node, now_s, of_pid, {uid: name for name, uid in uids.items()}
        ),
    )
    sent = unwatched.streamed(snapshot, getting_on)
    return REPORT.encode(report_size.fitted(rank_report.carrying(report, sent, of_pid)))
