"""RDMA ports whose error counters grow: more than usual, not once, and more than those of other ports."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.history.port_errors import PortErrorWatch
from kcover_ebpf.facts.devices import FabricErrors
from kcover_ebpf.ids import NS, Pid

PORT, OTHER = "mlx5_0/1", "mlx5_1/1"
EVERY_S = 5


def count(
    watch: PortErrorWatch, since_s: int, until_s: int, errors: int, port: str = PORT, pid: int = 7
) -> None:
    """So many errors in each reading."""
    for second in range(since_s, until_s, EVERY_S):
        counters = (("packet_seq_err", errors - 1), ("symbol_error", 1))
        watch.observe(FabricErrors(second * NS, Pid(pid), port, "0000:5d:00.0", counters))


def test_port_error_watch__the_port_its_counters_and_who_has_it_open() -> None:
    watch = PortErrorWatch()
    assert watch.erring(NS) is None
    count(watch, 5, 65, 10, pid=7)
    count(watch, 5, 65, 10, pid=8)
    found = watch.erring(60 * NS, 2.0)
    assert found is not None
    assert (found.port, found.rate_per_s, set(map(int, found.pids))) == (PORT, 2.0, {7, 8})
    assert found.counters == (("packet_seq_err", 54), ("symbol_error", 6))
    assert found.text == (
        "the error counters of RDMA port mlx5_0/1 (0000:5d:00.0) grow: "
        "packet_seq_err +54, symbol_error +6 in 30 s"
    )
    assert watch.erring(60 * NS, 2.1) is None, "too few"
    assert watch.erring(91 * NS) is None, "it is over"


def test_port_error_watch__one_burst_is_no_bad_link() -> None:
    watch = PortErrorWatch()
    count(watch, 5, 10, 100_000)
    assert watch.erring(6 * NS) is None
    count(watch, 10, 15, 2)
    assert watch.erring(11 * NS) is not None


@pytest.mark.parametrize(("errors", "is_named"), [(10, False), (20, False), (31, True)])
def test_port_error_watch__a_port_that_always_counts_some_is_named_when_it_counts_more(
    errors: int, is_named: bool
) -> None:
    watch = PortErrorWatch()
    count(watch, 5, 1805, 10)
    assert watch.erring(1800 * NS) is None
    count(watch, 1805, 1865, errors)
    assert (watch.erring(1860 * NS) is not None) == is_named


def test_port_error_watch__minutes_of_the_job_before_the_first_error_count() -> None:
    """Else a fault that lasts for some minutes would be usual."""
    watch = PortErrorWatch()
    watch.watch(NS)
    count(watch, 1805, 2405, 10)
    assert watch.erring(2400 * NS) is not None


def test_port_error_watch__minutes_without_errors_count() -> None:
    watch = PortErrorWatch()
    count(watch, 5, 125, 10)
    count(watch, 1805, 1865, 10)
    assert watch.erring(1860 * NS) is not None


@pytest.mark.parametrize(("others", "has_most"), [(9, False), (14, False), (4, True)])
def test_port_error_watch__a_port_has_most_if_no_other_has_nearly_as_many(
    others: int, has_most: bool
) -> None:
    watch = PortErrorWatch()
    count(watch, 5, 65, 10)
    count(watch, 5, 65, others, OTHER)
    found = watch.erring(60 * NS)
    assert found is not None
    assert (found.port, found.has_most) == (OTHER if others > 10 else PORT, has_most)


def test_port_error_watch__one_that_always_counts_many_hides_no_other() -> None:
    watch = PortErrorWatch()
    count(watch, 5, 1865, 1_000, OTHER)
    count(watch, 1805, 1865, 10)
    found = watch.erring(1860 * NS)
    assert found is not None
    assert (found.port, found.has_most) == (PORT, True)
