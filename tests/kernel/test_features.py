"""What doctor reports about the kernel agrees with what the kernel then does."""

import json
from pathlib import Path

import pytest

from kcover_ebpf.kernel.features import kernel_features
from tests.kernel.command import done


def test_what_the_base_layer_needs_is_found_where_it_loads() -> None:
    found = {one.name: one for one in kernel_features()}
    for name in (
        "ring buffer",
        "iterator over threads",
        "iterator over descriptors",
        "typed tracepoints",
    ):
        assert found[name].found, found[name]
        assert ":" not in found[name].detail


def test_a_kernel_feature_that_is_absent_says_why() -> None:
    for one in kernel_features():
        assert one.found or ": " in one.detail, one
    kprobe = next(one for one in kernel_features() if one.name == "kprobe")
    assert kprobe.found == Path("/sys/bus/event_source/devices/kprobe").exists()


def test_trying_kernel_features_leaves_nothing_open() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    kernel_features()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.fixture
def contained() -> tuple[str, ...]:
    """What runs a command with its own process numbers, as in a container without hostPID."""
    return ("unshare", "--pid", "--fork", "--mount-proc")


def test_a_job_in_a_foreign_pid_namespace_is_refused_in_one_line(
    contained: tuple[str, ...], tmp_path: Path
) -> None:
    # the kernel's numbers are those of the host: a stranger's exit would be taken for a rank's
    ended = done("run", "--", "touch", "started", folder=tmp_path, prefix=contained)
    assert ended.returncode == 3
    (line,) = ended.stderr.splitlines()
    assert "pid namespace" in line
    assert "hostPID" in line
    assert not (tmp_path / "started").exists()


def test_doctor_names_a_foreign_pid_namespace(contained: tuple[str, ...], tmp_path: Path) -> None:
    ended = done("doctor", "-o", "json", folder=tmp_path, prefix=contained)
    assert ended.returncode == 3
    reported = json.loads(ended.stdout)
    assert [
        feature["found"] for feature in reported["features"] if feature["name"] == "process numbers"
    ] == [False]
    assert "pid namespace" in reported["trouble"]
