"""The schedule of inspections: real rounds of an operator's checks, and what becomes of their results."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from kcover_ebpf.agent.node_health import inspector as module
from kcover_ebpf.agent.node_health.inspector import Inspector, InspectorOptions
from kcover_ebpf.agent.node_health.left_behind import LeftBehind
from kcover_ebpf.api.codec import decode
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.api.pods import pod_of
from kcover_ebpf.errors import ApiError, UsageError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.host import capabilities
from kcover_ebpf.host.host_programs import host_root
from kcover_ebpf.inspection import plugins, schedule
from kcover_ebpf.inspection.checks import devlink
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckResult, Cost, unknown
from kcover_ebpf.inspection.round import RoundAnswer, RoundOptions, answer_of, environment
from testbed.skips import ROOT
from tests.unit.support.inspection_hosts import NIC, pci_device, tool
from tests.waiting import until

TRAINER = pod_of(
    {
        "metadata": {"name": "trainer-0", "namespace": "team", "uid": "8f1d3a52"},
        "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]},
    }
)
PODS = {TRAINER.uid: TRAINER}
XID = ReportedDeviceFault("0000:5d:00.0", "xid_79", "fell off the bus", fatal=True, unfit=True)


class FakeHealthServer:
    """Takes what is applied; refuses as often as it is asked to."""

    def __init__(self, refuse: int = 0) -> None:
        self.refuse = refuse
        self.objects: list[dict[str, Any]] = []

    def apply(self, path: str, body: dict[str, Any], manager: str) -> None:
        assert (path, manager) == ("/apis/kcover.io/v1alpha1/nodehealths/n1", "kcover-agent")
        if self.refuse:
            self.refuse -= 1
            raise ApiError("no")
        self.objects.append(body)

    def result(self) -> str:
        return str(self.objects[-1]["status"]["result"]) if self.objects else ""


class Bench:
    """An inspector in its thread, with plug-ins of the test alone."""

    def __init__(self, folder: Path, server: FakeHealthServer, interval_s: float = 0.1) -> None:
        self.plugins, self.server = folder / "plugins", server
        self.errors: list[tuple[str, str]] = []
        names = tuple(f"plugin/{path.name}" for path in sorted(self.plugins.iterdir()))
        wanted = RoundOptions(names, str(self.plugins))
        options = InspectorOptions("n1", interval_s, folder / "state/health.json", wanted)
        self.inspector = Inspector(server, options, self._on_error, PODS.get)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=self.inspector.run)

    def _on_error(self, verb: str, resource: str, error: ApiError) -> None:
        self.errors.append((verb, resource))

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.inspector.close()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A file whose existence is a fault of the node."""
    file = tmp_path / "broken"
    script = f'test -e {file} && echo "it is broken" && exit 1; echo fine'
    tool(tmp_path / "plugins", "probe", script)
    return file


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND_AGAIN_S", 0.05)


def test_inspector__a_node_fails_and_is_mended(tmp_path: Path, broken: Path) -> None:
    with Bench(tmp_path, FakeHealthServer()) as bench:
        until(lambda: bench.server.result() == "pass")
        broken.touch()
        until(lambda: bench.server.result() == "fail")
        status = bench.server.objects[-1]["status"]
        assert status["reason"] == "plugin/probe: it is broken"
        assert status["cleanRounds"] == 0
        broken.unlink()
        until(lambda: bench.server.objects[-1]["status"]["cleanRounds"] >= 2)
    assert bench.inspector.cpu_s > 0.0
    assert bench.errors == []


def test_inspector__of_a_volume_at_fault_pod_and_claim_are_named(tmp_path: Path) -> None:
    volume = f"/var/lib/kubelet/pods/{TRAINER.uid}/volumes/kubernetes.io~csi/pvc-1/mount"
    tool(tmp_path / "plugins", "mounts", f'echo "{volume} is gone"; exit 1')
    with Bench(tmp_path, FakeHealthServer()) as bench:
        until(lambda: bench.server.result() == "fail")
    reason = bench.server.objects[-1]["status"]["reason"]
    assert reason == f"plugin/mounts: {volume} is gone; pod team/trainer-0, claim data"


def test_inspector__what_failed_before_the_agent_was_started_anew_is_remembered(
    tmp_path: Path, broken: Path
) -> None:
    broken.touch()
    with Bench(tmp_path, FakeHealthServer()) as first:
        until(lambda: first.server.result() == "fail")
    since = first.server.objects[0]["status"]["since"]
    with Bench(tmp_path, FakeHealthServer()) as second:
        until(lambda: second.server.result() == "fail")
    assert second.server.objects[0]["status"]["since"] == since


def test_inspector__a_result_that_was_refused_is_sent_again(tmp_path: Path, broken: Path) -> None:
    with Bench(tmp_path, FakeHealthServer(refuse=2), interval_s=3600.0) as bench:
        bench.inspector.exchange((XID,))
        until(lambda: bench.server.result() == "fail")
    assert bench.errors == [("apply", "nodehealths")] * 2


def test_inspector__a_new_fault_asks_for_a_round_at_once_and_an_old_one_does_not(
    tmp_path: Path, broken: Path
) -> None:
    with Bench(tmp_path, FakeHealthServer(), interval_s=3600.0) as bench:
        assert bench.inspector.exchange((XID,)) == {}
        until(lambda: len(bench.server.objects) == 1)
        assert "xid_79" in bench.server.objects[0]["status"]["reason"]
        (fault,) = bench.server.objects[0]["status"]["faults"]
        assert (fault["device"], fault["fault"], fault["count"]) == (XID.device, "xid_79", 1)
        for _ in range(20):
            bench.inspector.exchange((XID,))
            time.sleep(0.01)
        bench.inspector.exchange(())
        bench.inspector.exchange((XID,))
        until(lambda: len(bench.server.objects) == 2)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("sys.exit('it is broken')", "the inspection failed: it is broken"),
        ("print('no json')", "gave no answer"),
        ("time.sleep(600)", "did not end within"),
    ],
)
def test_inspector__a_round_that_gives_no_answer_makes_all_unknown(
    tmp_path: Path,
    broken: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    words: str,
) -> None:
    broken.touch()
    with Bench(tmp_path, FakeHealthServer()) as bench:
        until(lambda: bench.server.result() == "fail")
        monkeypatch.setattr(module, "ROUND_DEADLINE_S", 1.0)
        argv = [sys.executable, "-c", f"import sys, time; {program}"]
        monkeypatch.setattr(RoundOptions, "argv", lambda _: argv)
        until(lambda: bench.server.result() == "unknown")
        (check,) = bench.server.objects[-1]["status"]["checks"]
    assert words in check["evidence"][0]
    assert check["unmended"], "it failed, and was not seen to work"


def test_inspector__what_hangs_is_not_started_again(
    tmp_path: Path, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bench(tmp_path, FakeHealthServer(), interval_s=3600.0) as bench:
        asked: list[RoundOptions] = []
        hangs = CheckResult("nvml", Cost.LIGHT, 1.0, (unknown("x"),), 1)

        def ask(wanted_options: RoundOptions) -> tuple[RoundAnswer, str]:
            asked.append(wanted_options)
            return RoundAnswer(() if wanted_options.left_out else (hangs,)), ""

        monkeypatch.setattr(bench.inspector, "_ask", ask)
        bench.inspector._inspect()
        bench.inspector._inspect()
        assert [options.left_out for options in asked] == [(), ("nvml",)]
        assert bench.inspector.latest_health is not None
        (check,) = bench.inspector.latest_health.checks
        assert (check.name, check.result) == ("nvml", Result.UNKNOWN)
        assert "process 1 of an earlier round hangs" in check.evidence[0]
        monkeypatch.setattr(LeftBehind, "is_there", lambda _: False)
        bench.inspector._inspect()
        assert asked[-1].left_out == ()


def never(_: object) -> Iterator[Any]:
    raise AssertionError


def test_scheduled__what_is_scheduled_depends_on_the_hardware(tmp_path: Path) -> None:
    own = Check("plugin/p", Cost.LIGHT, 5.0, "", "", never)

    options = InspectionOptions(tmp_path)

    def names(*left_out: str) -> list[str]:
        return [check.name for check in schedule.scheduled((), (own,), options, left_out)]

    plain = ["pcie", "links", "storage", "shm", "inodes", "memory", "clock", "d_state"]
    plain += ["kernel_log", "plugin/p"]
    assert names() == plain
    assert names("pcie", "plugin/p") == plain[1:-1]
    pci_device(tmp_path, "0000:5d:00.0")
    pci_device(tmp_path, "0000:0a:00.0", NIC, vendor="0x15b3")
    assert names() == ["nvml", "modules", *plain[:2], "rdma", *plain[2:]]
    options = InspectionOptions(tmp_path, peers=(("a", 1), ("b", 2)))
    assert names()[-2:] == ["peers", "plugin/p"]


def test_scheduled__devlink_where_an_adapter_reports_by_it_in_a_network_that_we_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node on which we may not stays calm: the check would be unknown in every round."""

    def is_there() -> bool:
        return devlink.CHECK in schedule.scheduled((), (), InspectionOptions(tmp_path))

    adapter = pci_device(tmp_path, "0000:0a:00.0", NIC, vendor="0x15b3")
    assert not is_there(), "no driver"
    (adapter / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    monkeypatch.setattr(capabilities, "effective", set[int])
    assert is_there()
    network = tmp_path / "proc/1/ns/net"
    network.parent.mkdir(parents=True)
    network.touch()
    assert not is_there(), "it is another one than ours"
    monkeypatch.setattr(capabilities, "effective", lambda: {capabilities.Capability.SYS_ADMIN})
    assert is_there()


def test_scheduled__a_heavy_check_is_never_scheduled(tmp_path: Path) -> None:
    own = plugins.load(ROOT / "plugins")
    with pytest.raises(UsageError, match="on demand, not on a schedule"):
        schedule.scheduled(("memory", "plugin/nccl_tests.py"), own, InspectionOptions(tmp_path))
    with pytest.raises(UsageError, match="no check is named 'nonsense'"):
        schedule.scheduled(("nonsense",), (), InspectionOptions(tmp_path))


def test_scheduled__one_peer_alone_is_refused_since_its_end_would_fail_every_node(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="name at least two peers"):
        schedule.scheduled((), (), InspectionOptions(tmp_path, peers=(("a", 1),)))


def test_environment__peers_are_connected_to_at_each_round(tmp_path: Path) -> None:
    """As the program that the schedule starts does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        wanted = RoundOptions(("peers",), peers=(there, "no.such.host.invalid:1"))
        done = subprocess.run(
            wanted.argv(), capture_output=True, text=True, check=True, env=environment(), timeout=60
        )
    (check,) = decode(RoundAnswer, json.loads(done.stdout)).checks
    assert (check.name, check.part.result) == ("peers", Result.WARN), "another one can be reached"
    assert f"{there}: name in " in " ".join(check.part.evidence)


def test_answer_of__the_round_writes_to_a_folder_of_the_host(tmp_path: Path) -> None:
    wanted = RoundOptions(("storage",), write_to=(str(tmp_path),))
    (check,) = answer_of(wanted).checks
    written = [text for text in check.part.evidence if ": 1 MiB written in " in text]
    assert [text.partition(":")[0] for text in written] == [f"{host_root() / str(tmp_path)[1:]}"]
    assert not list(tmp_path.iterdir())


def test_inspector__a_round_that_breaks_is_reported_and_the_next_one_runs(
    broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that ends has the kubelet restart the agent, and so end what it watches."""
    left, whole = [1], Inspector._ask

    def ask(self: Inspector, wanted_options: RoundOptions) -> Any:
        if left:
            left.pop()
            raise ValueError("no such round")
        return whole(self, wanted_options)

    monkeypatch.setattr(Inspector, "_ask", ask)
    server = FakeHealthServer()
    with Bench(tmp_path, server) as bench:
        until(lambda: server.result() == "pass")
        assert bench.errors == [("inspect", "node")]
