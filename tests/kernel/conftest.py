import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.kernel.probes import FAMILIES, costly
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from testbed.skips import ROOT

from .order_bench import Bench
from .pods import kubelet_root

# Threads are sampled in one of two ways, so what is tested about them is tested in both.
BOTH_WAYS = {"test_threads", "test_totals", "test_scale", "test_turns"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernel" in metafunc.fixturenames:
        both = metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS
        metafunc.parametrize("kernel", ["walk", "visits"] if both else ["walk"], indirect=True)


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Iterator[KernelSampler]:
    """Our programs, loaded; "visits" is how kernels before 6.7 sample threads."""
    families = [one for one in FAMILIES if request.param == "walk" or one.name != "walk"]
    with KernelSampler.open(Settings(), families) as opened:
        assert not costly(opened.statuses)
        yield opened
        assert not opened.rejected


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with kubelet_root() as root:
        made = Bench(root, tmp_path)
        yield made
        made.resumer.close()
        for pod in made.pods:
            for leader in pod.leaders:
                leader.kill()
                leader.wait()
                assert leader.stdout is not None
                leader.stdout.close()


@pytest.fixture(scope="session")
def nccl_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with NCCL's entry points that needs no GPU: testbed/faults/nccl.c, compiled."""
    path = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    source = ROOT / "testbed/faults/nccl.c"
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", "-o", str(path), str(source)], check=True, timeout=60
    )
    return path
