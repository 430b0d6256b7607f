"""The bandwidth between all pods of a job, before it begins: real processes, with small programs for mpirun."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from kcover_ebpf.agent import preflight
from plugins import bandwidth, nccl_tests
from plugins.bandwidth import __main__ as program
from plugins.bandwidth import all_reduce
from plugins.bandwidth.all_reduce import Measured, read, ring_phases
from plugins.bandwidth.place import PodPlace, Unknown, place_of

# --- what is copied into the image of a job

FOLDER = Path(str(bandwidth.__file__)).parent
FILES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_bandwidth__an_old_python_without_our_packages_can_run_it(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules = {str(node.module) for node in imports if node.level == 0}
    modules |= {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    assert {module.partition(".")[0] for module in modules} <= set(sys.stdlib_module_names)
    assert {node.level for node in imports} <= {0, 1}, "nothing outside its folder"


def test_bandwidth__what_is_copied_runs_alone(tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", FOLDER, tmp_path], check=True)
    done = alone(tmp_path, tmp_path, {})
    assert (done.returncode, done.stdout) == (
        0,
        "bandwidth: unknown: could not convert string to float: ''\n",
    )


def alone(
    code: Path, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the copy in `code` as the container does, without any package that is installed here."""
    words = [sys.executable, "-S", "-m", "bandwidth", str(folder)]
    clean = {"PATH": "/usr/bin:/bin"} | dict(environment)
    return subprocess.run(
        words, cwd=code, env=clean, capture_output=True, text=True, check=False, timeout=60
    )


def test_bandwidth__the_exit_code_is_the_one_that_agents_know() -> None:
    assert program.FAILED == preflight.FAILED


# --- where a pod is in its job

PLACES = {
    "an indexed Job": (
        {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "llm-0.llm"},
        PodPlace(1, 2, "llm-0.llm"),
    ),
    "a TrainJob, whose world counts GPUs": (
        {"PET_NODE_RANK": "3", "PET_NNODES": "4", "WORLD_SIZE": "32", "PET_MASTER_ADDR": "a"},
        PodPlace(3, 4, "a"),
    ),
    "a PyTorchJob": ({"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "a"}, PodPlace(0, 8, "a")),
}


@pytest.mark.parametrize(("environment", "place"), PLACES.values(), ids=PLACES)
def test_place_of__place(environment: dict[str, str], place: PodPlace) -> None:
    assert place_of(environment) == place


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "a"},
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a"},
        {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"},
    ],
)
def test_place_of__place_that_is_not_known(environment: dict[str, str]) -> None:
    with pytest.raises(Unknown):
        place_of(environment)


# --- what nccl-tests prints

GOOD = """\
# nThread 1 nGpus 1 minBytes 536870912 maxBytes 536870912
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 178.25
"""


def test_read__a_run_is_read() -> None:
    assert read(0, GOOD) == Measured(178.25, is_wrong=False, text="178.25 GB/s")
    assert read(0, GOOD).is_below(180.0)
    assert not read(0, GOOD).is_below(178.25)
    wrong = read(1, GOOD.replace("values : 0 OK", "values : 12 FAILED"))
    assert (wrong.text, wrong.is_below(0.0)) == ("12 wrong value(s)", True)
    failed = read(1, "-----\n\nThere are not enough slots\n")
    assert not failed.is_known
    assert failed.text == "all_reduce_perf ended with code 1: There are not enough slots"
    assert "it printed nothing" in read(0, "").text


@pytest.mark.parametrize("count", range(3, 12))
def test_ring_phases__each_pod_is_measured_with_both_neighbours_and_once_at_a_time(
    count: int,
) -> None:
    phases = ring_phases(count)
    for phase in phases:
        members = [number for pair in phase for number in pair]
        assert len(members) == len(set(members))
    pairs = [frozenset(pair) for phase in phases for pair in phase]
    assert set(pairs) == {frozenset((i, (i + 1) % count)) for i in range(count)}
    assert len(pairs) == count


def test_read__both_plugins_read_alike() -> None:
    names = ("BUFFER", "BANDWIDTH", "WRONG")
    assert [getattr(nccl_tests, name) for name in names] == [
        getattr(all_reduce, name) for name in names
    ]


# --- all of it

MPIRUN = """#!{python}
import os, shlex, subprocess, sys, time
words = sys.argv[1:]
hosts = [each.rpartition(":")[0] for each in words[words.index("--host") + 1].split(",")]
agent = shlex.split(os.environ["OMPI_MCA_plm_rsh_agent"])
if {hang!r} == "everywhere":
    agent += [next(each for each in hosts if each != "127.0.0.1"), "sleep 1000"]
    sys.exit(subprocess.call(agent))
nodes = []
for host in hosts:
    command = 'test "$LOST" != yes && printf %s "$KCOVER_NODE_NAME" >' + f"{folder}/{{host}}"
    start = ["sh", "-c", command] if host == "127.0.0.1" else [*agent, host, command]
    if subprocess.call(start):
        print(f"{{host}}: cannot be started")
        sys.exit(1)
    nodes.append(open(f"{folder}/{{host}}").read())
print("# Out of bounds values : 0 OK")
print("# Avg bus bandwidth    :", 12.5 if set(nodes) & set({slow!r}) else 180)
"""
"""Starts a command at each host as mpirun starts its daemon: here by itself, elsewhere by the agent."""
POD = """
import socket, sys
from bandwidth import first, follower, link, __main__ as program
index, folder, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
first.PORT = follower.PORT = port
first.GATHER_S, follower.GATHER_S = {gather_s}, {reach_s}
first._ALL_S = first._PART_S = {measure_s}
connect = socket.create_connection
if index:
    socket.create_connection = lambda to, timeout: connect(to, timeout, source_address=(f"127.0.0.{{index + 1}}", 0))
sys.argv[1:] = [folder]
sys.exit(program.main())
"""
"""Each pod has another address and folder; the programs of MPI are the same for all."""


class Job:
    """Pods that are processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.path = f"{self.bin}:{os.environ['PATH']}"
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.has("all_reduce_perf", "#!/bin/sh\n")

    def has(self, name: str, text: str) -> None:
        """A program is on the PATH of each pod."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def mpirun(self, *slow: str, hang: str = "") -> None:
        """The nodes that are slow with any other."""
        text = MPIRUN.format(python=sys.executable, folder=self.folder, slow=slow, hang=hang)
        self.has("mpirun", text)

    def run(
        self,
        count: int = 3,
        absent: tuple[int, ...] = (),
        gather_s: float = 60.0,
        reach_s: float = 60.0,
        measure_s: float = 60.0,
        lost: tuple[int, ...] = (),
    ) -> list[tuple[int, str]]:
        """Exit code and output of each pod.

        `gather_s`: for which the first pod waits for the others; `reach_s`: for which each tries to reach the first.
        """
        source = POD.format(gather_s=gather_s, reach_s=reach_s, measure_s=measure_s)
        processes = []
        for index in range(count):
            own = self.folder / f"pod-{index}"
            own.mkdir(exist_ok=True)
            words = [sys.executable, "-c", source, str(index), str(own), str(self.port)]
            environment = {
                "PATH": self.path,
                "PYTHONPATH": str(FOLDER.parent),
                "MASTER_ADDR": "127.0.0.1",
                "RANK": str(index),
                "WORLD_SIZE": str(count),
                program.FLOOR: "100",
                "KCOVER_NODE_NAME": f"n{index}",
                "LOST": "yes" if index in lost else "no",
            }
            if index not in absent:
                processes.append(
                    subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
                )
        ended = [process.communicate(timeout=120)[0] for process in processes]
        return [(process.returncode, out) for process, out in zip(processes, ended, strict=True)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_bandwidth__all_are_fast(job: Job) -> None:
    job.mpirun()
    assert job.run() == [(0, "bandwidth: pass: 3 pods: 180 GB/s, floor 100\n")] * 3


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_bandwidth__the_pod_on_a_slow_node_is_not_started_and_only_that(
    job: Job, slow: int
) -> None:
    job.mpirun(f"n{slow}")
    found = job.run()
    assert [code for code, _ in found] == [81 if index == slow else 0 for index in range(3)]
    text = f"bandwidth: fail: 3 pods: 12.5 GB/s, floor 100; slow: n{slow}\n"
    assert {out for _, out in found} == {text}
    again = job.run()
    assert [code for code, _ in again] == [code for code, _ in found], "the kubelet starts it again"
    assert {out for _, out in again} == {""}, "without another measurement"


def test_bandwidth__where_no_single_node_is_the_cause_the_job_starts(job: Job) -> None:
    job.mpirun("n0", "n1")
    text = "bandwidth: warn: {} pods: 12.5 GB/s, floor 100; no single node is the cause\n"
    assert job.run(2) == [(0, text.format(2))] * 2, "of two neither is accused"


def test_bandwidth__all_slow_is_the_network_and_no_node(job: Job) -> None:
    job.mpirun("n0", "n1", "n2")
    found = job.run()
    assert [code for code, _ in found] == [0] * 3
    assert "no single node is the cause" in found[0][1]


def test_bandwidth__a_pod_that_does_not_come_delays_the_job_and_no_more(job: Job) -> None:
    job.mpirun()
    found = job.run(3, absent=(2,), gather_s=6.0)
    assert [code for code, _ in found] == [0, 0]
    assert {out for _, out in found} == {"bandwidth: unknown: 2 of 3 pods came within 6 s\n"}


def test_bandwidth__without_a_first_pod(job: Job) -> None:
    (found,) = job.run(2, absent=(0,), reach_s=1.0)
    assert found[0] == 0
    assert "unknown: no connection to 127.0.0.1" in found[1]


def test_bandwidth__a_measurement_that_hangs_is_ended_with_what_it_started_elsewhere(
    job: Job,
) -> None:
    job.mpirun(hang="everywhere")
    found = job.run(measure_s=1.0)
    assert [code for code, _ in found] == [0] * 3
    assert {out for _, out in found} == {
        "bandwidth: unknown: all_reduce_perf did not end within 1 s\n"
    }


def test_bandwidth__a_pod_where_nothing_can_be_started(job: Job) -> None:
    job.mpirun()
    found = job.run(lost=(1,))
    assert [code for code, _ in found] == [0] * 3
    assert "127.0.0.2: cannot be started" in found[0][1]


@pytest.mark.parametrize(("name", "how"), [("mpirun", "Open MPI"), ("all_reduce_perf", "MPI=1")])
def test_bandwidth__a_tool_that_is_missing(job: Job, name: str, how: str) -> None:
    job.has("mpirun", "#!/bin/sh\n")
    (job.bin / name).unlink()
    job.path = str(job.bin)
    found = job.run()
    assert [code for code, _ in found] == [0] * 3
    assert f"unknown: {name} is not on the PATH" in found[2][1]
    assert how in found[2][1]


def test_earlier__a_slow_node_does_not_keep_a_job_for_ever(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("81 1000.0\n")
    assert program.earlier(tmp_path, 1000.0 + program.HOLD_S - 1) == 81
    assert program.earlier(tmp_path, 1000.0 + program.HOLD_S) == 0
    (tmp_path / "answer").write_text("half an ans")
    assert program.earlier(tmp_path, 1000.0) is None
