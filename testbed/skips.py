"""What a test may need from the machine, and when a skip counts as a failure.

On a developer's machine a missing capability skips the test and says why. Where nothing may be
skipped in silence (CI=true or KCOVER_NO_SKIP=1) a skip fails, unless its capability is listed in
expected_skips.txt with the reason why the CI machine cannot have it.
"""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from testbed.driver import bcc_headers

ROOT = Path(__file__).resolve().parent.parent
EXPECTED_SKIPS = ROOT / "tests/expected_skips.txt"
PREVIOUS = "KCOVER_PREVIOUS"
"""The variable that names a checkout of the version before, with its image in build/image."""
_BPF_MAP_TYPE_ARRAY = 2


def _can_create_map() -> bool:
    try:
        libbpf = ctypes.CDLL("libbpf.so.1")
    except OSError:
        return False
    fd: int = libbpf.bpf_map_create(_BPF_MAP_TYPE_ARRAY, b"skips", 4, 4, 1, None)
    if fd < 0:
        return False
    os.close(fd)
    return True


def _has_cgroup2() -> bool:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return any(line.split()[2] == "cgroup2" and "rw" in line.split()[3] for line in mounts)


def _runs(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=10, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# Capability -> (is it here?, what a person can do about it).
CAPABILITIES: Mapping[str, tuple[Callable[[], bool], str]] = {
    "root": (lambda: os.geteuid() == 0, "run as root"),
    "bpf": (_can_create_map, "run as root, with libbpf1, on a kernel that allows bpf(2)"),
    "btf": (Path("/sys/kernel/btf/vmlinux").exists, "boot a kernel with CONFIG_DEBUG_INFO_BTF"),
    "kprobe": (
        Path("/sys/bus/event_source/devices/kprobe").exists,
        "boot a kernel with CONFIG_KPROBE_EVENTS",
    ),
    "cgroup2": (_has_cgroup2, "mount a writable cgroup2 file system"),
    "netns": (lambda: _runs("unshare", "--net", "true"), "run as root"),
    "nftables": (
        lambda: _runs("unshare", "--net", "nft", "list", "ruleset"),
        "install nftables, on a kernel with nf_tables, as root",
    ),
    "fuse": (Path("/dev/fuse").exists, "load the fuse module"),
    "loop": (Path("/dev/loop-control").exists, "load the loop module"),
    "slurm": (
        lambda: all(shutil.which(name) for name in ("munged", "slurmctld", "slurmd", "sbatch")),
        "run tools/setup test",
    ),
    "gcc": (lambda: shutil.which("gcc") is not None, "run tools/setup test"),
    "clang": (lambda: shutil.which("clang-14") is not None, "run tools/setup test"),
    "bpftool": (lambda: _runs("bpftool", "version"), "run tools/setup test"),
    "bcc": (bcc_headers.can_run, "run tools/setup test: bcc and headers of a kernel"),
    "previous": (
        lambda: Path(os.environ.get(PREVIOUS, "/nowhere"), "build/image/kcover-ebpf.tar").exists(),
        f"name a checkout of the version before in {PREVIOUS}, and build its image there",
    ),
    "etcd": (lambda: shutil.which("etcd") is not None, "run tools/setup cluster"),
    "go": (lambda: shutil.which("go") is not None, "run tools/setup cluster: Kubernetes is built"),
    "chromium": (lambda: shutil.which("chromium") is not None, "run tools/setup test"),
    "promtool": (lambda: shutil.which("promtool") is not None, "run tools/setup test"),
    "prometheus": (lambda: shutil.which("prometheus") is not None, "run tools/setup test"),
    "torch": (lambda: _has_module("torch"), "run tools/setup test"),
    "mpi": (
        lambda: _has_module("mpi4py") and shutil.which("mpirun") is not None,
        "run tools/setup test",
    ),
    "ssh-keygen": (lambda: shutil.which("ssh-keygen") is not None, "run tools/setup test"),
    "minisign": (lambda: shutil.which("minisign") is not None, "run tools/setup test"),
    "bash": (lambda: shutil.which("bash") is not None, "install bash"),
    "zsh": (lambda: shutil.which("zsh") is not None, "run tools/setup test"),
    "fish": (lambda: shutil.which("fish") is not None, "run tools/setup test"),
    "nccl": (
        (ROOT / ".bench/nccl/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2").exists,
        "run tools/setup bench",
    ),
    "jax": ((ROOT / ".bench/jax/bin/python").exists, "run tools/setup bench"),
    "frameworks": (
        lambda: bool(os.environ.get("KCOVER_FRAMEWORKS")),
        "set KCOVER_FRAMEWORKS to a virtual environment with Lightning, Ray and NVRx",
    ),
    "nvidia-ml-py": (lambda: _has_module("pynvml"), "run tools/setup test"),
    "nvidia": (Path("/dev/nvidiactl").exists, "run on a machine with an NVIDIA GPU"),
}


@cache
def _has(capability: str) -> bool:
    is_here, _ = CAPABILITIES[capability]
    return is_here()


def require(*capabilities: str) -> None:
    """Skip the running test unless the machine has every capability (names: CAPABILITIES)."""
    for capability in capabilities:
        if not _has(capability):
            skip(capability, CAPABILITIES[capability][1])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose mark `needs` names what is not here; a hook, so this module is a plugin of pytest as well."""
    for mark in item.iter_markers("needs"):
        require(*mark.args)


def skip(capability: str, reason: str) -> NoReturn:
    """Skip the running test because it turned out that the machine lacks `capability`.

    For what only a try can show, such as a kernel that refuses one program type; the capability
    need not be in CAPABILITIES.
    """
    pytest.skip(f"needs {capability}: {reason}")


def is_strict(environ: Mapping[str, str]) -> bool:
    """Whether an unexpected skip is a failure here."""
    return environ.get("CI") == "true" or environ.get("KCOVER_NO_SKIP") == "1"


def expected_skips(text: str) -> frozenset[str]:
    """The capabilities in an expected_skips.txt; raises ValueError for one without a reason."""
    names = set()
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.partition(":")
        if not reason.strip():
            raise ValueError(f"expected_skips.txt: give a reason: {line!r}")
        names.add(name.strip())
    return frozenset(names)


def failure(reason: str, expected: frozenset[str]) -> str | None:
    """Why a skip for `reason` is a failure in a strict run; None when it was expected."""
    match = re.match(r"(?:Skipped: )?needs ([\w.-]+): ", reason)
    if match and match[1] in expected:
        return None
    return (
        f"{reason}\nNothing may be skipped here: make tools/setup provide it, or list the "
        "capability in tests/expected_skips.txt with the reason why this machine cannot have it."
    )
