"""Many ranks print when one fails: one line names the first that had its own reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Phase, Status
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.gang import log_evidence
from kcover_ebpf.gang.gang_input import NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.model.verdict import Cause, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.recovery.restart import guards
from tests.unit.support import crash_logs
from tests.unit.support.crash_logs import logged
from tests.unit.support.report_builders import NOW_S, case, local, pod, rank, report

RANKS = 64
CULPRIT = 17
AT_S = NOW_S - 3.0
VERDICT = Verdict(VerdictKind.CRASHED, Cause.EXITED, since_s=NOW_S - 2.0)
RESET = crash_logs.raised("ConnectionResetError: [Errno 104] Connection reset by peer", line=82)
REMOTE = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting\n"
)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
CLOSING = "W1130 12:13:49.388 1 torch/distributed/elastic/api.py:900] Sending process 7 closing signal SIGTERM\n"


def of_ranks(text: str, number: int) -> str:
    return "".join(f"[rank{number}]: {line}\n" for line in text.splitlines())


def evidence(texts: dict[int, tuple[str, float]]) -> list[str]:
    """Of one pod a rank, two pods a node; text of each rank and when it was printed (seconds after the fault)."""
    reports: list[ReceivedReport] = []
    for node in range(RANKS // 2):
        ranks = (2 * node, 2 * node + 1)
        logs = tuple(
            logged(
                of_ranks(texts[number][0], number),
                start=0,
                pod_uid=f"uid-{number}",
                at_s=AT_S + texts[number][1],
            )
            for number in ranks
            if number in texts
        )
        reports.append(report(f"n{node}", *(rank(number) for number in ranks), logs=logs))
    nodes = {f"uid-{number}": f"n{number // 2}" for number in range(RANKS)}
    found = log_evidence.read(tuple(reports), nodes, VERDICT, NOW_S)
    return [line.text for line in found.evidence]


OWN = {
    "an error of the program": (crash_logs.BUG, "at train.py:71 (python_error)"),
    "a GPU whose memory failed": (ECC, "(cuda_ecc, hardware)"),
}


@pytest.mark.parametrize(("own", "words"), OWN.values(), ids=OWN)
@pytest.mark.parametrize("early_s", [0.4, -0.4], ids=["later", "earlier by its clock"])
def test_first_cause__of_64_ranks_that_all_print_one_is_named(
    own: str, words: str, early_s: float
) -> None:
    victims = {
        number: (
            (RESET, REMOTE, CLOSING + REMOTE)[number % 3],
            early_s + number * 0.001,
        )
        for number in range(RANKS)
    }
    (line,) = evidence({**victims, CULPRIT: (own + RESET, 0.0)})
    assert line.startswith(f"log of pod j-{CULPRIT}")
    assert "first cause: " in line
    assert words in line
    assert line.endswith("; 63 others followed")


def test_first_cause__of_ranks_that_raise_different_errors_the_earliest_is_named() -> None:
    other = crash_logs.raised("KeyError: 'x'", line=9)
    texts = dict.fromkeys(range(RANKS), (other, 0.5))
    (line,) = evidence({**texts, CULPRIT: (crash_logs.BUG, 0.0)})
    assert line.startswith(f"log of pod j-{CULPRIT} rank {CULPRIT}: first cause: traceback ")


def test_first_cause__one_bug_of_all_ranks_is_said_once() -> None:
    texts = {number: (crash_logs.BUG, number * 0.001) for number in range(RANKS)}
    (line,) = evidence(texts)
    assert line.endswith(", as in 63 others")


def test_first_cause__where_all_are_victims_no_cause_is_invented() -> None:
    lines = evidence({number: (RESET, number * 0.001) for number in range(RANKS)})
    assert [line for line in lines if "first cause" in line] == []


NODES, RANKS_OF_POD = 64, 8
OF_512 = 137
"""In pod 17."""


def of_pod(number: int, early_s: float) -> str:
    """What eight ranks write to the log of one container, in the order of time; each victim's traceback is its own."""
    lines: list[tuple[float, str]] = []
    for rank_number in range(number * RANKS_OF_POD, (number + 1) * RANKS_OF_POD):
        at_s = AT_S + early_s + rank_number * 0.0005
        reset = crash_logs.raised("ConnectionResetError: [Errno 104] peer", line=100 + rank_number)
        text = (reset, REMOTE, CLOSING + reset)[rank_number % 3]
        if rank_number == OF_512:
            at_s, text = AT_S, crash_logs.BUG + reset
        lines += [(at_s, f"[rank{rank_number}]: {line}") for line in text.splitlines()]
    in_order = sorted(lines, key=lambda timed: timed[0])
    return "".join(f"{rfc3339.to_text(at_s)} stderr F {line}\n" for at_s, line in in_order)


def pod_of_512(number: int) -> Pod:
    return replace(pod(0), name=f"j-{number}", uid=f"uid-{number}", node=f"n{number}")


@pytest.mark.parametrize("early_s", [0.3, -0.3], ids=["later", "earlier by its clock"])
def test_first_cause__of_512_ranks_in_64_pods_one_line_is_in_the_incident(early_s: float) -> None:
    culprit_pod = OF_512 // RANKS_OF_POD
    reports = []
    for number in range(NODES):
        reader = ContainerLogReader(f"uid-{number}", "main", crash_logs.RULES)
        chunk = Chunk(0, of_pod(number, early_s).encode(), is_first=True)
        reader.feed(chunk, NOW_S)
        log = reader.summary(NOW_S)
        assert log is not None
        verdict = local(VerdictKind.CRASHED, Cause.EXITED, culprit_pod, 2.0, EvidenceKind.EVENT)
        said = verdict if number == culprit_pod else None
        reports.append(report(f"n{number}", rank(number), logs=(log,), verdict=said))
    gang_input = replace(
        case(*reports),
        pods=tuple(pod_of_512(number) for number in range(NODES)),
        nodes={f"n{number}": NodeState(f"n{number}") for number in range(NODES)},
    )
    status = guards.describe(Status(phase=Phase.OPEN), merge(gang_input), ())

    (line,) = [found.text for found in status.evidence if found.kind is EvidenceKind.LOG]
    assert line.startswith(f"log of pod j-{culprit_pod} rank {OF_512}: first cause: traceback ")
    assert "at train.py:71 (python_error)" in line
    assert line.endswith("; 63 others followed")
