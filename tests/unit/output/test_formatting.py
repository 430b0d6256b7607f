"""Verdicts and facts as JSON and as text."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.facts import kernel
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.model.verdict import (
    Cause,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
    WaitRow,
)
from kcover_ebpf.output import formatting

NOON = 1_767_355_200.0  # 2026-01-02 12:00:00 UTC

HUNG = Verdict(
    job="train",
    incident="train-1",
    kind=VerdictKind.HUNG,
    cause=Cause.BLOCKED_LOCK,
    time_s=NOON,
    since_s=NOON - 12.3,
    culprit=Culprit(rank=2, pid=4711, tid=4713, host="node7"),
    evidence=(
        Evidence(EvidenceKind.TIME, "no step for 12.3 s, the longest so far took 0.6 s"),
        Evidence(EvidenceKind.SINK, "thread 4713 waits in futex without a time-out"),
    ),
    victims=(0, 1, 3),
    deadline_s=NOON + 1787.7,
    unobserved=("RDMA traffic", "GPU"),
    waits=(
        WaitRow(2, 4711, 4713, "python3", "rank", "futex in futex_wait_queue", 12.3, "culprit"),
        WaitRow(0, 4709, 4709, "python3", "rank", "recvmsg", 11.9, "victim"),
        WaitRow(None, 4700, 4700, "torchrun", "launcher", "wait4", 75.0),
    ),
)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def verdict_from(fields: dict[str, Any]) -> Verdict:
    """The inverse of `verdict_object`: whatever it loses, the property below finds."""
    culprit = fields["culprit"]
    return Verdict(
        job=fields["job"],
        incident=fields["incident"],
        kind=VerdictKind(fields["verdict"]),
        cause=Cause(fields["cause"]),
        time_s=fields["time"],
        since_s=fields["since"],
        culprit=None if culprit is None else Culprit(**culprit),
        evidence=tuple(
            Evidence(EvidenceKind(item["kind"]), item["text"]) for item in fields["evidence"]
        ),
        victims=tuple(fields["victims"]),
        deadline_s=fields["deadline"],
        unobserved=tuple(fields["unobserved"]),
        waits=tuple(WaitRow(**wait) for wait in fields["waits"]),
        factor=fields["factor"],
    )


_numbers = st.integers(0, 2**31)
_seconds = st.integers(0, 2**45).map(lambda ticks: ticks / 1024)  # exact in a JSON float
_texts = st.text(max_size=30)
_culprits = st.builds(
    Culprit,
    rank=st.none() | _numbers,
    pid=st.none() | _numbers,
    tid=st.none() | _numbers,
    host=st.none() | _texts,
    pod=st.none() | _texts,
    node=st.none() | _texts,
    device=st.none() | _texts,
)
_rows = st.builds(
    WaitRow,
    rank=st.none() | _numbers,
    pid=_numbers,
    tid=_numbers,
    comm=_texts,
    role=_texts,
    wait=_texts,
    since_s=_seconds,
    note=_texts,
)
verdicts = st.builds(
    Verdict,
    job=_texts,
    incident=_texts,
    kind=st.sampled_from(VerdictKind),
    cause=st.sampled_from(Cause),
    time_s=st.integers(0, 2**40).map(lambda ticks: ticks / 64),
    since_s=_seconds,
    culprit=st.none() | _culprits,
    evidence=st.lists(st.builds(Evidence, st.sampled_from(EvidenceKind), _texts)).map(tuple),
    victims=st.lists(_numbers).map(tuple),
    deadline_s=st.none() | _seconds,
    unobserved=st.lists(_texts).map(tuple),
    waits=st.lists(_rows, max_size=5).map(tuple),
    factor=st.none() | _seconds,
)


@given(verdicts)
def test_verdict_object__json_keeps_every_field_of_a_verdict(verdict: Verdict) -> None:
    line = formatting.event_line("verdict", verdict.time_s, formatting.verdict_object(verdict))
    assert "\n" not in line
    fields = json.loads(line)
    assert fields["schema"] == "kcover.io/v1alpha1"
    assert fields["event"] == "verdict"
    assert verdict_from(fields) == verdict


@given(verdicts)
def test_headline__text_never_commands_the_terminal(verdict: Verdict) -> None:
    for line in [formatting.headline(verdict), *formatting.details(verdict)]:
        assert line.isprintable()


def test_verdict_object__the_contract_of_a_verdict_by_name() -> None:
    fields = formatting.verdict_object(HUNG)
    assert fields["culprit"] == {
        "rank": 2,
        "pid": 4711,
        "tid": 4713,
        "host": "node7",
        "pod": None,
        "node": None,
        "device": None,
        "or_rank": None,
        "pod_uid": None,
    }
    assert fields["verdict"] == "HUNG"
    assert fields["cause"] == "blocked_lock"
    assert fields["since"] == NOON - 12.3
    assert fields["victims"] == [0, 1, 3]
    assert fields["deadline"] == NOON + 1787.7
    assert fields["evidence"][1] == {
        "kind": "sink",
        "text": "thread 4713 waits in futex without a time-out",
    }


def test_headline__a_hang_as_text() -> None:
    assert formatting.headline(HUNG) == (
        "HUNG  rank 2 (pid 4711, thread 4713) blocked_lock: "
        "waits for a lock that is not released, for 12.3s; ranks 0, 1, 3 wait"
    )
    assert formatting.details(HUNG) == [
        "- no step for 12.3 s, the longest so far took 0.6 s [time]",
        "- thread 4713 waits in futex without a time-out [sink]",
        "the framework would have waited until 12:29:47 (29m 48s more)",
        "not observed: RDMA traffic; GPU",
        "RANK  ROLE      PID/TID    THREAD    WAITS IN                   SINCE   NOTE",
        "2     rank      4711/4713  python3   futex in futex_wait_queue  12.3s   culprit",
        "0     rank      4709       python3   recvmsg                    11.9s   victim",
        "-     launcher  4700       torchrun  wait4                      1m 15s",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"kind": VerdictKind.WORKING, "cause": Cause.TRAINING}, "WORKING  training: is training"),
        (
            {"kind": VerdictKind.WORKING, "cause": Cause.CHECKPOINT},
            "WORKING  checkpoint: writes a checkpoint, for 5.0s",
        ),
        (
            {"kind": VerdictKind.HUNG, "cause": Cause.UNKNOWN},
            "HUNG  culprit unknown, unknown, for 5.0s",
        ),
        (
            {"kind": VerdictKind.CRASHED, "cause": Cause.KILLED, "culprit": Culprit(pid=7, tid=7)},
            "CRASHED  pid 7 killed: was killed, 5.0s ago",
        ),
        (
            {
                "kind": VerdictKind.SLOW,
                "cause": Cause.SLOW_RANK,
                "culprit": Culprit(rank=1),
                "factor": 2.31,
            },
            (
                "SLOW  rank 1 slow_rank: is slower than its peers, "
                "2.3 times as slow as its peers, for 5.0s"
            ),
        ),
        (
            {
                "kind": VerdictKind.DEVICE_FAULT,
                "cause": Cause.DEVICE,
                "culprit": Culprit(rank=1, pid=9, tid=9, node="n1", device="gpu3"),
                "victims": tuple(range(9)),
            },
            (
                "DEVICE_FAULT  rank 1 (pid 9, node n1, device gpu3) device: "
                "has a faulty device, for 5.0s; 9 ranks wait"
            ),
        ),
    ],
)
def test_headline__headlines(changes: dict[str, Any], line: str) -> None:
    values: dict[str, Any] = {"job": "j", "incident": "", "time_s": NOON, "since_s": NOON - 5}
    assert formatting.headline(Verdict(**values | changes)) == line


def test_formatting__every_cause_has_its_text() -> None:
    assert set(formatting.CAUSE_TEXT) == set(Cause)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0s"),
        (0.26, "0.3s"),
        (59.94, "59.9s"),
        (59.96, "1m 00s"),
        (125, "2m 05s"),
        (3599.6, "1h 00m"),
        (3720, "1h 02m"),
        (175000, "2d 00h"),
        (2592000, "30d 00h"),
    ],
)
def test_span__spans(seconds: float, text: str) -> None:
    assert formatting.span(seconds) == text


LOCAL, REMOTE = ("10.0.0.1", 29500), ("::1", 4711)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (
            kernel.ProcessExit(1, Pid(7), 3, 0, core_dumped=False, comm="python3"),
            "pid 7 (python3) exited with code 3",
        ),
        (
            kernel.ProcessExit(1, Pid(7), 0, 0, core_dumped=False, comm="", known=False),
            "pid 7 is gone; its exit was not observed",
        ),
        (
            kernel.ProcessExit(1, Pid(7), 0, 9, core_dumped=False, comm="a\x1b[31m"),
            "pid 7 (a\\x1b[31m) was killed by SIGKILL",
        ),
        (
            kernel.OomKill(1, Pid(7), "python3"),
            "pid 7 (python3) was chosen by the out-of-memory killer",
        ),
        (
            kernel.FatalSignal(1, Pid(7), 11, "python3"),
            "pid 7 (python3) is dying of SIGSEGV",
        ),
        (
            kernel.SignalSent(1, Pid(7), Tid(7), 19, Pid(0), ""),
            "the kernel sent SIGSTOP to pid 7",
        ),
        (
            kernel.SignalSent(1, Pid(7), Tid(7), 40, Pid(8), "sh"),
            "pid 8 (sh) sent signal 40 to pid 7",
        ),
    ],
)
def test_fact_text__facts_as_text(fact: kernel.Fact, text: str) -> None:
    assert formatting.fact_text(fact) == text


def test_fact_object__a_fact_as_json() -> None:
    fact = kernel.ProcessExit(5, Pid(7), 3, 0, core_dumped=False, comm="python3")
    line = formatting.event_line("fact", NOON, formatting.fact_object(fact))
    assert json.loads(line) == {
        "schema": "kcover.io/v1alpha1",
        "time": NOON,
        "event": "fact",
        "fact": "process_exit",
        "boottime_ns": 5,
        "pid": 7,
        "exit_code": 3,
        "signal": 0,
        "core_dumped": False,
        "known": True,
        "comm": "python3",
    }
