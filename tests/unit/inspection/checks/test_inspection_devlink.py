"""Health reporters of drivers: from the kernel's message to a finding about the adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.devlink import DEVLINK_NAMES, devlinkcmd
from pyroute2.netlink.exceptions import NetlinkError

from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.checks import devlink
from kcover_ebpf.inspection.checks.devlink import Reporter
from kcover_ebpf.inspection.options import InspectionOptions
from tests.unit.support.inspection_hosts import found

PASS, UNKNOWN, WARN, FAIL = Result.PASS, Result.UNKNOWN, Result.WARN, Result.FAIL
PF = "pci/0000:40:00.0"


def reporter(is_healthy: bool, errors: int, handle: str = PF) -> Reporter:
    return Reporter(handle, "fw_fatal", is_healthy, errors, 0)


@pytest.mark.parametrize(
    ("reporters", "result", "words"),
    [
        ([reporter(True, 0)], PASS, f"{PF} fw_fatal: healthy"),
        ([reporter(True, 2)], WARN, "healthy again after 2 error(s), 0 recoveries"),
        ([reporter(False, 1)], FAIL, "fw_fatal: error, 1 error(s), 0 recoveries"),
        ([], UNKNOWN, "no driver here"),
    ],
    ids=["well", "was not", "is not", "none"],
)
def test_find__what_a_reporter_says(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    reporters: list[Reporter],
    result: Result,
    words: str,
) -> None:
    monkeypatch.setattr(devlink, "read", lambda _: reporters)
    one = found(devlink.CHECK, tmp_path)
    assert (one.result, words in one.evidence) == (result, True)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NetlinkError(2, "No such file or directory"), "devlink cannot be asked"),
        (PermissionError(1, "Operation not permitted"), "the host's network cannot be entered"),
    ],
    ids=["a kernel without it", "no privileges"],
)
def test_find__what_cannot_be_asked_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, words: str
) -> None:
    def fails(_: Path | None) -> list[Reporter]:
        raise error

    monkeypatch.setattr(devlink, "read", fails)
    one = found(devlink.CHECK, tmp_path)
    assert (one.result, words in one.evidence) == (UNKNOWN, True)


@pytest.mark.parametrize(
    ("handle", "device"),
    [
        (PF, "0000:40:00.0"),
        (f"{PF}/1", "0000:40:00.0"),
        ("auxiliary/mlx5_core.sf.2", ""),
    ],
)
@pytest.mark.parametrize(("is_healthy", "errors"), [(True, 0), (True, 2), (False, 1)])
def test_find__the_device_is_named(
    monkeypatch: pytest.MonkeyPatch, handle: str, device: str, errors: int, *, is_healthy: bool
) -> None:
    """By it a node that was cordoned for an adapter is uncordoned."""
    monkeypatch.setattr(devlink, "read", lambda _: [reporter(is_healthy, errors, handle)])
    (one,) = devlink.find(InspectionOptions())
    assert one.device == device


def message(state: int, *more: tuple[str, Any]) -> Any:
    """As the kernel writes it (devlink_nl_health_reporter_fill), taken apart by the library."""
    written = devlinkcmd()
    written["cmd"] = DEVLINK_NAMES["DEVLINK_CMD_HEALTH_REPORTER_GET"]
    name = "DEVLINK_ATTR_HEALTH_REPORTER"
    inner = [[f"{name}_NAME", "fw"], [f"{name}_STATE", state], [f"{name}_ERR_COUNT", 3]]
    inner.append([f"{name}_RECOVER_COUNT", 2])
    device = [["DEVLINK_ATTR_BUS_NAME", "pci"], ["DEVLINK_ATTR_DEV_NAME", "0000:40:00.0"]]
    written["attrs"] = [*device, *more, [name, {"attrs": inner}]]
    written.encode()
    read = devlinkcmd(written.data)
    read.decode()
    return read


def test_reporter__a_message_of_the_kernel() -> None:
    assert devlink._reporter(message(0)) == Reporter(PF, "fw", True, 3, 2)
    of_port = message(1, ("DEVLINK_ATTR_PORT_INDEX", 7))
    assert devlink._reporter(of_port) == Reporter(f"{PF}/7", "fw", False, 3, 2)
