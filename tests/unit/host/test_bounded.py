"""Files and folders of processes whose size a tenant decides: no more of them is read than is needed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kcover_ebpf
from kcover_ebpf.host import blocked_call, bounded, over_bounds, proc_text, procfs, stack_words
from kcover_ebpf.host.stack_words import ProcessMemory
from kcover_ebpf.ids import Pid

PACKAGE = Path(kcover_ebpf.__file__).parent


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(b"line\n" * 100_000)
    return path


def test_read_bytes__a_file_without_end_is_cut_at_a_line_and_counted(large: Path) -> None:
    before = over_bounds.counts()["file"]
    found = bounded.read_bytes(large, 1003)
    assert found == b"line\n" * 200
    assert over_bounds.counts()["file"] == before + 1
    assert bounded.read_bytes(large) == large.read_bytes()
    assert bounded.read_text("/nowhere/at/all") == ""


def test_lines__no_more_is_read_than_asked_for(large: Path) -> None:
    assert len(list(bounded.lines(large))) == 100_000
    assert len(list(bounded.lines(large, 70_000))) <= 2 * (64 << 10) // 5
    (large.parent / "short").write_text("a\rb\nlast")
    assert list(bounded.lines(large.parent / "short")) == ["a\rb", "last"]


def test_over_bounds__what_another_process_counted_is_added_and_nothing_else() -> None:
    over_bounds.drained()
    over_bounds.count("mappings")
    over_bounds.count("mappings")
    assert over_bounds.drained() == {"mappings": 2}
    assert over_bounds.drained() == {}
    wrongs: list[object] = [None, 7, [], {"x": 1}, {"file": -1}, {"file": "1"}, {1: 1}]
    for wrong in (*wrongs, {"file": 1 << 30}):
        over_bounds.add(wrong)
    assert over_bounds.drained() == {}
    over_bounds.add({"file": 3, "x": 1, "mappings": True})
    assert over_bounds.drained() == {"file": 3}


def proc_with(tmp_path: Path, targets: list[str]) -> Path:
    folder = tmp_path / "7/fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)
    return tmp_path


def test_open_among__paths_of_others_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "PROC", proc_with(tmp_path, ["/dev/nvidia0", "x" * 200, "/b"]))
    assert procfs.open_among(Pid(7), {"/b", "/c"}, tmp_path) == {"/b"}
    assert procfs.open_devices(Pid(7)) == frozenset({"/dev/nvidia0"})
    assert procfs.open_devices(Pid(8)) is None


def test_open_devices__of_a_process_with_too_many_descriptors_none_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "PROC", proc_with(tmp_path, ["/a"] * 50))
    assert procfs.open_devices(Pid(7)) == frozenset()
    before = over_bounds.counts()["descriptors"]
    monkeypatch.setattr(procfs, "_MOST_FILES", 20)
    assert procfs.open_devices(Pid(7)) is None
    assert over_bounds.counts()["descriptors"] == before + 1


def test_open_devices__names_of_devices_have_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"/dev/nvidia{number}{'x' * 1000}" for number in range(300)]
    monkeypatch.setattr(procfs, "PROC", proc_with(tmp_path, names))
    found = procfs.open_devices(Pid(7))
    assert found is not None
    assert sum(map(len, found)) <= 256 * 256


def maps(count: int, *, adjacent: bool) -> list[str]:
    step = 1 if adjacent else 2
    return [
        f"{4096 * (1 + step * n):x}-{4096 * (2 + step * n):x} r-xp {4096 * n if adjacent else 0:08x} 08:01 7 /lib/a.so"
        for n in range(count)
    ]


@pytest.mark.parametrize(("adjacent", "kept"), [(True, 1), (False, 2048)])
def test_process_memory__mappings_have_an_end(
    adjacent: bool, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = maps(5000, adjacent=adjacent)
    monkeypatch.setattr(bounded, "lines", lambda *_: iter(lines))
    memory = ProcessMemory()
    assert len(memory.modules(Pid(1))) == kept
    mappings = tuple(proc_text.code_mappings(lines))  # the same of every process
    monkeypatch.setattr(stack_words, "code_mappings", lambda _: mappings)
    for pid in range(2, 400):
        memory.modules(Pid(pid))
    assert memory._kept_count <= stack_words._MOST_KEPT
    memory.forget(Pid(399))
    assert memory._kept_count == sum(len(map_.starts) for map_ in memory._maps.values())


def test_watched_by__of_an_epoll_with_very_many_descriptors_the_first_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "tfd: {:8} events:       19 data:                5 pos:0 ino:1 sdev:9\n"
    path = tmp_path / "fdinfo"
    path.write_text("".join(line.format(number) for number in range(100_000)))
    monkeypatch.setattr(blocked_call, "read_text", lambda _: bounded.read_text(path))
    assert blocked_call._watched_by(Pid(1), 3) == list(range(64))
    assert path.stat().st_size > bounded.MOST_BYTES


TENANTS = ("agent", "collectives", "devices", "host", "kernel", "trace", "watching")
"""Packages that read what tenants decide on: files of processes, logs, answers."""
OUR_OWN = "a file of the package, of the agent's own state, or that the operator names"
KERNELS = "the kernel's own, of fixed length, and no process decides what it holds"
UNBOUNDED = {
    "agent/drill.py": OUR_OWN,
    "agent/containers.py": "mountinfo of the node's first process, and a file of a control group",
    "agent/node_health/inspector.py": OUR_OWN,
    "agent/orders/order_journal.py": OUR_OWN,
    "agent/reader/log_operations.py": "folders of the kubelet, whose names are of pods of the node",
    "agent/reports/report_cache.py": OUR_OWN,
    "devices/catalog/files.py": OUR_OWN,
    "devices/inventory/identity.py": KERNELS,
    "devices/rdma_traffic.py": KERNELS,
    "devices/watch.py": KERNELS,
    "host/cgroups.py": "pids of a control group, which an order must know all of; pid_max bounds them",
    "host/procfs.py": KERNELS,
    "host/read_workers.py": "a task of ours, no file",
    "host/capabilities.py": KERNELS,
    "kernel/attach_points.py": KERNELS,
}


def unbounded(source: str) -> list[int]:
    """Lines that read a whole file, or list a whole folder."""
    whole = {"read_text", "read_bytes", "readlines", "listdir"}
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        is_ours = isinstance(node.func.value, ast.Name) and node.func.value.id == "bounded"
        reads_all = node.func.attr == "read" and not node.args
        if not is_ours and (node.func.attr in whole or reads_all):
            found.append(node.lineno)
    return found


def test_bounded__nothing_of_a_tenant_is_read_without_a_bound() -> None:
    found = {
        str(path.relative_to(PACKAGE)): unbounded(path.read_text())
        for package in TENANTS
        for path in sorted((PACKAGE / package).rglob("*.py"))
    }
    found = {path: lines for path, lines in found.items() if lines}
    assert {path: lines for path, lines in found.items() if path not in UNBOUNDED} == {}
    assert set(UNBOUNDED) - set(found) == set(), "these have no such read any more"


def test_unbounded__a_read_of_a_whole_file_is_found() -> None:
    assert unbounded("Path('/proc/1/maps').read_text()\nopen(x).read()\nopen(x).read(7)") == [1, 2]
    assert unbounded("bounded.read_text(x)\nos.listdir(x)") == [2]
