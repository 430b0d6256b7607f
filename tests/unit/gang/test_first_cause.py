"""Many ranks print when one fails: one line names the first that had its own reason."""

from __future__ import annotations

import pytest

from kcover_ebpf.gang import log_evidence
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.gang.log_evidence import Fault
from kcover_ebpf.model.verdict import Cause, VerdictKind
from tests.unit import crash_logs
from tests.unit.crash_logs import logged
from tests.unit.report_builders import NOW_S, rank, report

RANKS = 64
CULPRIT = 17
AT_S = NOW_S - 3.0
FAULT = Fault(VerdictKind.CRASHED, Cause.EXITED, NOW_S - 2.0, None)
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
    found = log_evidence.read(tuple(reports), nodes, FAULT, NOW_S)
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
