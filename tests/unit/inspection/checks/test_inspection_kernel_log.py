"""What the kernel logged about the node: lines that last, that pass, that are forged, and the log itself."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.api import rfc3339
from kcover_ebpf.devices.xid import kmsg_reader
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection import runner, schedule
from kcover_ebpf.inspection.checks import kernel_log
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.registry import CHECKS
from kcover_ebpf.inspection.result import (
    Check,
    CheckFinding,
    Cost,
    failed,
    passed,
    unknown,
)
from kcover_ebpf.logs.rules import shipped
from tests.unit.support.inspection_hosts import Found

NOW_S = 10_000.0
UNIX_S = rfc3339.from_text("2026-11-23T13:00:00Z")
"""At `NOW_S`."""
READ_ONLY = "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"
MLX5 = "mlx5_core 0000:41:00.0: poll_health:800:(pid 0): Fatal error 3 detected"
LOCKUP = "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python3:4711]"
SEGFAULT = (
    "python3[88]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2.21.5[7f00+100000]"
)


def record(text: str, *, at_s: float = NOW_S - 60, priority: int = 3) -> bytes:
    return f"{priority},7,{int(at_s * 1e6)},-;{text}\n SUBSYSTEM=block\n".encode()


def judged(*raw: bytes, own: Path | None = None, answered: Collection[str] = ()) -> Found:
    return Found.of(kernel_log.judged(raw, NOW_S, UNIX_S - NOW_S, own, answered))


def test_judged__what_lasts_fails_the_node_however_long_ago_it_was() -> None:
    found = judged(record("ok"), record(READ_ONLY, at_s=5.0))
    assert found.result is Result.FAIL
    assert found.evidence.startswith("filesystem_readonly: ")
    assert "dmesg --clear" in found.advice


def test_judged__what_another_check_sees_the_end_of_is_a_warning() -> None:
    """A GPU that was reset is well by NVML, and the line about it stays in the log."""
    line = record("NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.")
    found = judged(line, answered=("pcie", "nvml"))
    assert found.result is Result.WARN
    assert found.evidence.startswith("gpu_fallen_off_bus: ")
    assert judged(line, answered=("pcie",)).result is Result.FAIL, "no check sees that GPU"


def test_judged__a_text_does_not_change_as_time_goes_by() -> None:
    raw = [record(READ_ONLY, at_s=5.0)]
    early, late = (list(kernel_log.judged(raw, NOW_S + s, UNIX_S - NOW_S)) for s in (0, 600))
    assert early == late


def test_shipped__the_check_that_a_rule_names_is_one_of_ours() -> None:
    named = {rule.check for rule in shipped() if rule.check}
    assert named == {"nvml", "devlink"}
    assert named <= {check.name for check in CHECKS}
    assert named <= {check.name for check, _ in schedule._WHERE}, "else it is not in a round"


@pytest.mark.parametrize(
    ("other", "fails"),
    [
        (None, True),
        (passed("healthy"), False),
        (failed("reporter in error", "reset it"), False),
        (unknown("did not answer within 20 s"), True),
    ],
    ids=["is not run", "passes", "fails", "observes nothing"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_inspect__a_line_is_left_to_its_check_where_that_has_answered(
    monkeypatch: pytest.MonkeyPatch, other: CheckFinding | None, *, fails: bool, is_first: bool
) -> None:
    """Only once it has: that it was started says nothing about the card."""
    monkeypatch.setattr(kmsg_reader, "stored", lambda _: [record(MLX5, at_s=5.0)])
    checks = [kernel_log.CHECK]
    if other is not None:

        def find(_: InspectionOptions) -> Iterator[CheckFinding]:
            time.sleep(0.3)
            yield other

        checks.insert(0 if is_first else 1, Check("devlink", Cost.LIGHT, 20.0, "", "", find))
    found = runner.inspect(checks, InspectionOptions(root=Path("/nowhere")))
    assert [result.name for result in found] == [check.name for check in checks]
    by_name = {check.name: check.part for check in found}
    assert (by_name["kernel_log"].result is Result.FAIL) == fails
    if fails:
        assert by_name["kernel_log"].evidence[0].startswith("mlx5_health_failed: ")


@pytest.mark.parametrize(("at_s", "result"), [(NOW_S - 60, "warn"), (NOW_S - 4000, "pass")])
def test_judged__what_passes_is_a_warning_for_an_hour(at_s: float, result: str) -> None:
    found = judged(record(LOCKUP, at_s=at_s - 10), record(LOCKUP, at_s=at_s))
    assert found.result.value == result
    if result == "warn":
        assert found.evidence.startswith("soft_lockup: ")
        assert found.evidence.endswith("(2 times, last at 2026-11-23T12:59Z)")


@pytest.mark.parametrize(
    "raw",
    [
        record(READ_ONLY, priority=11),
        record(SEGFAULT),
        record("usb 1-1: new device") + READ_ONLY.encode(),
        record(f"overlayfs: unknown mount option x\\x0a{LOCKUP}", priority=12),
        b"",
        b"not a record",
    ],
    ids=["user space", "a job's", "properties", "escaped", "empty", "no record"],
)
def test_judged__what_is_forged_or_about_a_job_does_not_count(raw: bytes) -> None:
    assert judged(raw).result is Result.PASS


def test_judged__rules_of_the_operator_are_tried_first(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        "[[rule]]\nname = 'gateway'\npattern = 'gateway lost quorum'\ndomain = 'storage'\n"
        "severity = 'fatal'\nconcerns = 'node'\nlasting = true\nadvice = 'call storage'\n"
    )
    found = judged(record("gateway lost quorum"), own=own)
    assert found.result is Result.FAIL
    assert found.evidence == "gateway: gateway lost quorum (once, at 2026-11-23T12:59Z)"
    assert found.advice.startswith("call storage; ")
    assert judged(record("gateway lost quorum")).result is Result.PASS


def test_judged__rules_of_node_problem_detector_whatever_the_file_is_called(tmp_path: Path) -> None:
    own = tmp_path / "rules.toml"
    own.write_text(
        '{"plugin": "kmsg", "rules": [{"type": "permanent", "condition": "KernelDeadlock",'
        ' "reason": "DockerHung", "pattern": "task docker:\\\\w+ blocked for more than \\\\w+ seconds"}]}'
    )
    found = judged(record("INFO: task docker:7 blocked for more than 120 seconds."), own=own)
    assert (found.result, found.evidence.partition(":")[0]) == (Result.FAIL, "DockerHung")


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_judged__any_bytes_are_read(raw: list[bytes]) -> None:
    assert Found.of(kernel_log.judged(raw, NOW_S, 0.0)).result in Result


def test_find__a_log_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (found,) = kernel_log.find(InspectionOptions(root=tmp_path))
    assert found.result is Result.UNKNOWN
    assert "No such file" in found.evidence


@pytest.mark.needs("root")
def test_find__the_log_of_this_kernel_is_read_to_its_end() -> None:
    raw = list(kmsg_reader.stored())
    assert all(b";" in chunk for chunk in raw)
    assert kernel_log.find(InspectionOptions(root=Path("/"))) is not None
    found = Found.of(kernel_log.find(InspectionOptions(root=Path("/"))))
    assert found.result is not Result.UNKNOWN
