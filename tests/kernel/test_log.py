"""Lines of the kernel log, written by the test and reported by the log family."""

from collections.abc import Iterator

import pytest

from kcover_ebpf.devices import families
from kcover_ebpf.facts.devices import DriverLine
from kcover_ebpf.kernel.probes import load_family
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from tests.kernel.helpers import FIRINGS

pytestmark = pytest.mark.alone  # the kernel log is one for all workers, and so is its second


@pytest.fixture
def watched(kernel: KernelSampler) -> Iterator[KernelSampler]:
    loaded = load_family(families.LOG, kernel.maps, Settings())
    assert "on_console" in loaded.links, loaded.statuses
    yield kernel
    loaded.close()


def _print(text: str) -> None:
    with open("/dev/kmsg", "w") as log:
        log.write(f"<7>{text}\n")


def _reported(kernel: KernelSampler) -> list[str]:
    facts = kernel.wait(0)
    return [fact.text for fact in facts if isinstance(fact, DriverLine) and "#" in fact.text]


@pytest.mark.parametrize(
    "stamp",
    ["", "[    0.000000] ", "[12345.678901][ T123] ", "[12345.678901][    T1] "],
    ids=["no stamp", "a time", "a time and a thread", "a time and the first thread"],
)
def test_a_line_is_reported_without_the_stamp_of_older_kernels(
    watched: KernelSampler, stamp: str
) -> None:
    lines = [f"kcover-ebpf test #{number}" for number in range(FIRINGS)]
    for line in lines:
        _print(stamp + line)
    assert _reported(watched) == lines


@pytest.mark.parametrize(
    "line",
    [
        "a line #1 of another program",
        "[12345.678901] a line #2 of another program",
        "pcieport 0000:5d:00.0: AER: corrected #3",
        "said kcover-ebpf #4",
        "[12345.678901]kcover-ebpf #5",
    ],
)
def test_lines_of_other_programs_are_not_reported(watched: KernelSampler, line: str) -> None:
    _print(line)
    _print("pcieport 0000:5d:00.0: pciehp: Slot(7): Link Down #6")
    assert _reported(watched) == ["pcieport 0000:5d:00.0: pciehp: Slot(7): Link Down #6"]


def test_a_driver_that_prints_in_a_loop_has_a_budget_and_a_fault_one_of_its_own(
    watched: KernelSampler,
) -> None:
    lost = watched.lost_counts["messages"]
    for number in range(200):
        _print(f"NVRM: noise #{number}")
    _print("NVRM: Xid (PCI:0000:5d:00): 79, #1")
    reported = _reported(watched)
    assert reported[-1].startswith("NVRM: Xid")
    # the lines may fall into two seconds
    assert 50 <= len(reported) - 1 <= 100
    assert len(reported) - 1 + watched.lost_counts["messages"] - lost == 200
