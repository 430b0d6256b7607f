"""What an operator has to want: kernels of GPUs, from a process that stands for CUDA's driver, and checkpoints.

The kubelet is real. Its runtime here has no CRIU, and the archive says so in the kubelet's words.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.archive.incident_archive import unpacked
from kcover_ebpf.output.archives import read_files
from testbed.driver import agents as real_agents
from testbed.driver.agents import Agent
from testbed.driver.cluster import JOBS, ROOT, Cluster, Namespace, until
from testbed.driver.kinds import KINDS, process, rank_pods, wait_for_training, wait_until_learned
from testbed.driver.nodes import kubelet_port
from testbed.driver.restarts import incidents, policy, running, wait_for_phase
from tests.unit.support.fake_cuda_dump import DRIVER, FLAGS, code, dump, grid

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(600, func_only=True)]
JOB = KINDS["job"]
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
ENVIRON = {
    "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
    "CUDA_COREDUMP_PIPE": "/tmp/cuda.pipe",
    "CUDA_COREDUMP_FILE": "/tmp/cuda.dump",
    "CUDA_COREDUMP_GENERATION_FLAGS": FLAGS,
}
BESIDE = (
    "env -u CUDA_COREDUMP_PIPE python3 /driver/driver /tmp/cuda.pipe /tmp/cuda.dump /driver/dump & "
    "exec python3 /train/train.py"
)


@pytest.fixture(scope="module")
def willing_agents(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Agent]]:
    """Agents that ask for both."""
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    ports: dict[str, int] = {}
    with ExitStack() as stack:
        for node in cluster.get("nodes"):
            name = node["metadata"]["name"]
            ports[name] = stack.enter_context(kubelet_port(cluster, name))
        started = real_agents.running(
            cluster,
            tmp_path_factory.mktemp("agents"),
            for_node=lambda node: (
                ["--gpu-core-dumps", f"--kubelet=127.0.0.1:{ports[node]}"],
                {},
            ),
        )
        yield stack.enter_context(started)


def _job() -> list[dict[str, Any]]:
    """The example whose ranks have a driver that listens, and whose pods want checkpoints."""
    objects = list(yaml.safe_load_all((JOBS / "job.yaml").read_text()))
    template = objects[-1]["spec"]["template"]
    template["metadata"]["labels"]["kcover.io/checkpoint"] = "true"
    (container,) = template["spec"]["containers"]
    container["command"] = ["sh", "-c", BESIDE]
    container["env"] += [{"name": name, "value": value} for name, value in ENVIRON.items()]
    container["volumeMounts"].append({"name": "driver", "mountPath": "/driver"})
    template["spec"]["volumes"].append({"name": "driver", "configMap": {"name": "driver"}})
    return objects


def _files(namespace: Namespace, folder: Path) -> None:
    """The driver, and the dump that it writes."""
    mangled = f"_Z{len(KERNEL)}{KERNEL}v".encode()
    (folder / "driver").write_text(DRIVER)
    (folder / "dump").write_bytes(
        dump(grid(0x1000, 1), modules=[(1, code((b"gemm", 0x2000), (mangled, 0x1000)))])
    )
    files = [f"--from-file={folder / name}" for name in ("driver", "dump")]
    namespace.ctl("create", "configmap", "driver", *files)


def test_kernels_are_named_and_a_checkpoint_that_the_runtime_cannot_write_is_said(
    namespace: Namespace, willing_agents: dict[str, Agent], tmp_path: Path
) -> None:
    policy(namespace, action="Snapshot")
    _files(namespace, tmp_path)
    namespace.apply(yaml.safe_dump_all(_job()))
    wait_for_training(namespace, JOB)
    with running(namespace, tmp_path / "controller.log"):
        wait_until_learned(namespace, JOB)
        pid = process(rank_pods(namespace, JOB)[-1])
        os.kill(pid, signal.SIGSTOP)
        try:
            incident = wait_for_phase(namespace, ("Observed",))
            until(lambda: len(_bundles(namespace)) == len(willing_agents), "both kept theirs")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert incident["status"]["cause"] == "stopped"
        until(lambda: all(path.is_dir() for path in _bundles(namespace)), "they are written")
    parts = [unpacked(read_files(path), str(path)).parts[0] for path in _bundles(namespace)]
    kernels = [kernel for part in parts for kernel in part.kernels]
    assert sorted((kernel.rank, kernel.name, kernel.state) for kernel in kernels) == [
        (0, KERNEL, "active"),
        (1, KERNEL, "active"),
    ]
    said = [text for part in parts for text in part.unobserved if "checkpoint" in text]
    print("\n".join(said))
    assert len(said) == JOB.pods
    assert all(text.startswith("checkpoint of demo-") for text in said)
    assert all("the kubelet answers 5" in text for text in said), said


def _bundles(namespace: Namespace) -> list[Path]:
    """Where agents on this host keep them."""
    found = [entry for one in incidents(namespace) for entry in one["status"].get("bundles", ())]
    return [Path(entry.partition(":")[2]) for entry in found]
