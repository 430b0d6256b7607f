"""What doctor tells about the kernel agrees with what the kernel then does."""

from pathlib import Path

from kcover_ebpf.kernel.features import kernel_features


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


def test_what_is_absent_says_why() -> None:
    for one in kernel_features():
        assert one.found or ": " in one.detail, one
    kprobe = next(one for one in kernel_features() if one.name == "kprobe")
    assert kprobe.found == Path("/sys/bus/event_source/devices/kprobe").exists()


def test_trying_leaves_nothing_open() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    kernel_features()
    assert sorted(Path("/proc/self/fd").iterdir()) == before
