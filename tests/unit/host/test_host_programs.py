"""Tools that the agent's image lacks run in the files of the host: here a folder with a static program."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcover_ebpf.facts.health import Result
from kcover_ebpf.host import capabilities, host_programs
from kcover_ebpf.inspection import runner
from kcover_ebpf.inspection.checks import nvidia_smi
from kcover_ebpf.inspection.options import InspectionOptions
from testbed.skips import ROOT
from tests.unit.support.inspection_hosts import found, pci_device

pytestmark = pytest.mark.needs("gcc", "root")

GPUS = "GPU 0: NVIDIA H200\n"
DRIVER = "run/nvidia/driver"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("stub") / "tool"
    source = ROOT / "testbed/faults/host_tool.c"
    subprocess.run(["gcc", "-static", "-o", str(target), str(source)], check=True, timeout=60)
    return target


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in the agent's image: what enters the host, and none of the tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("chroot", "nsenter"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))


class Host:
    """Files with one GPU, in which programs are installed."""

    def __init__(self, root: Path, program: Path) -> None:
        self.root, self._program = root / "host", program
        pci_device(self.root, "0000:5d:00.0")

    def install(self, name: str, answer: str | None, part: str = ".") -> Path:
        file = self.root / part / "usr/bin" / name
        file.parent.mkdir(parents=True)
        file.hardlink_to(self._program)
        if answer is not None:
            (self.root / part / "answer").write_text(answer)
        return file

    def lines(self, name: str) -> list[str]:
        return (self.root / name).read_text().splitlines()


@pytest.fixture
def host(tmp_path: Path, program: Path) -> Host:
    return Host(tmp_path, program)


@pytest.mark.parametrize("part", [".", DRIVER])
def test_host_programs__a_tool_that_only_the_host_has_runs_there(host: Host, part: str) -> None:
    host.install("nvidia-smi", GPUS, part)
    one = found(nvidia_smi.CHECK, host.root)
    assert (one.result, "lists 1 GPU(s)" in one.evidence) == (Result.PASS, True), one.evidence
    assert host.lines(f"{part}/arguments")[0] == "/usr/bin/nvidia-smi"


def test_host_programs__absolute_links_are_those_of_the_host(host: Host) -> None:
    """As Debian's alternatives are."""
    file = host.install("nvidia-smi", GPUS)
    moved = file.rename(file.with_name("nvidia-smi.current"))
    (host.root / "etc").mkdir()
    (host.root / "etc/alternative").symlink_to("../usr/bin/" + moved.name)
    file.symlink_to("/etc/alternative")
    assert found(nvidia_smi.CHECK, host.root).result is Result.PASS
    moved.unlink()
    assert found(nvidia_smi.CHECK, host.root).result is Result.UNKNOWN
    file.unlink()
    file.symlink_to("/usr/bin/nvidia-smi")
    assert host_programs.find(host.root, "nvidia-smi") is None, "a link to itself"


def test_host_programs__no_variable_of_ours_reaches_the_host(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    host.install("nvidia-smi", GPUS)
    found(nvidia_smi.CHECK, host.root)
    names = {line.partition("=")[0] for line in host.lines("environment")}
    assert names == {"HOME", "LANG", "LD_LIBRARY_PATH", "PATH"}


@pytest.fixture
def network() -> Iterator[Path]:
    """A network namespace whose loopback is down."""
    unshare = str(shutil.which("unshare", path="/usr/bin:/bin"))
    sleep = str(shutil.which("sleep", path="/usr/bin:/bin"))
    with subprocess.Popen([unshare, "--net", sleep, "600"]) as process:
        theirs = Path(f"/proc/{process.pid}/ns/net")
        while theirs.samefile("/proc/self/ns/net"):
            time.sleep(0.01)
        yield theirs
        process.kill()


@pytest.mark.needs("netns")
def test_host_programs__the_network_is_that_of_the_host(host: Host, network: Path) -> None:
    host.install("nvidia-smi", GPUS)
    first = host.root / "proc/1/ns"
    first.mkdir(parents=True)
    (first / "net").symlink_to(network)
    assert found(nvidia_smi.CHECK, host.root).result is Result.PASS
    assert host.lines("network") == ["0"]


def test_host_programs__our_own_tool_comes_first(host: Host, tmp_path: Path) -> None:
    host.install("nvidia-smi", GPUS)
    own = tmp_path / "bin/nvidia-smi"
    own.write_text("#!/bin/sh\necho 'GPU 0: A'; echo 'GPU 1: B'\n")
    own.chmod(0o755)
    assert "lists 2 GPU(s)" in found(nvidia_smi.CHECK, host.root).evidence


def test_host_programs__without_privileges_it_is_unknown_and_no_fault(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities, "effective", frozenset)
    host.install("nvidia-smi", "")
    one = found(nvidia_smi.CHECK, host.root)
    assert (one.result, "lack the privileges" in one.evidence) == (Result.UNKNOWN, True)
    assert "agent.privileged" in one.advice
    assert not (host.root / "arguments").exists()


def test_host_programs__one_that_does_not_start_is_unknown_and_no_fault(host: Host) -> None:
    file = host.install("nvidia-smi", GPUS)
    file.unlink()
    file.write_text("#!/nowhere\n")
    file.chmod(0o755)
    one = found(nvidia_smi.CHECK, host.root)
    assert (one.result, "does not start: chroot: " in one.evidence) == (Result.UNKNOWN, True)


def test_host_programs__one_of_the_host_that_hangs_is_ended(host: Host) -> None:
    host.install("nvidia-smi", None)
    hurried = replace(nvidia_smi.CHECK, deadline_s=1.0)
    (result,) = runner.inspect([hurried], InspectionOptions(root=host.root))
    assert result.part.evidence == ("did not answer within 1 s",)
    assert host.lines("arguments"), "it had begun"
    assert not any(_root_of(entry) == host.root for entry in Path("/proc").glob("[0-9]*"))


def _root_of(process: Path) -> Path | None:
    try:
        return (process / "root").readlink()
    except OSError:
        return None
