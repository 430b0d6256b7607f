"""Real kernels, real PCIe errors: each is counted once, and is one of the device and its holders.

Each count is compared with a second source in the guest: the kernel's own counters.
"""

from __future__ import annotations

import re

import pytest

from kcover_ebpf.devices.aer import CORRECTED_BITS, UNCORRECTED_BITS
from tests.vm.conftest import GPU, PORT, needs_driver
from tests.vm.guest import Guest
from tests.vm.sensing import Figure, Lines, Observer, of_kind


def counter(guest: Guest, kind: str) -> int:
    """Errors that the port above the GPU had, by the kernel's own count.

    The device's own count leaves out fatal errors: its registers cannot be read then.
    """
    return int(guest.shell(f"cat /sys/bus/pci/devices/{PORT}/aer_rootport_total_err_{kind}"))


def aer_counts(observer: Observer, mark: int, wanted: int) -> Lines:
    def enough(lines: Lines) -> bool:
        return sum(int(fact["count"]) for fact in of_kind(lines, "AerError")) >= wanted

    observer.wait(enough, mark)
    observer.mark()
    return of_kind(observer.lines()[mark:], "AerError")


def check_severity(
    guest: Guest,
    observer: Observer,
    kind: str,
    bits: tuple[int, int],
    pause_s: float,
    note: Figure,
) -> Lines:
    mark, before = observer.mark(), counter(guest, kind)
    guest.python(f"inject('{GPU}', {bits[0]}, {bits[1]}, 23, {pause_s})", timeout_s=200)
    facts = aer_counts(observer, mark, 23)
    note("errors_reported", f"{sum(fact['count'] for fact in facts)} of 23")
    assert counter(guest, kind) - before == 23
    assert {fact["device"] for fact in facts} == {GPU}
    assert sum(fact["count"] for fact in facts) == 23
    return facts


@pytest.mark.family("aer")
def test_23_corrected_errors(guest: Guest, observer: Observer, record_property: Figure) -> None:
    facts = check_severity(guest, observer, "cor", (0, 0x40), 0.02, record_property)
    assert {fact["severity"] for fact in facts} == {2}
    assert all("Bad TLP" in fact["errors"] for fact in facts)
    assert len(facts) < 23


@pytest.mark.family("aer")
@needs_driver
def test_23_nonfatal_errors(guest: Guest, observer: Observer, record_property: Figure) -> None:
    mark = observer.mark()
    facts = check_severity(guest, observer, "nonfatal", (0x4000, 0), 0.3, record_property)
    assert len(facts) == 23
    assert all("Completion Timeout" in fact["errors"] for fact in facts)
    faults = of_kind(observer.lines()[mark:], "DeviceFault")
    assert {(fault["pid"], fault["ends_job"]) for fault in faults} == {(observer.member, False)}


@pytest.mark.family("aer")
@needs_driver
def test_23_fatal_errors_end_the_job_that_holds_the_gpu(
    guest: Guest, observer: Observer, record_property: Figure
) -> None:
    mark = observer.mark()
    facts = check_severity(guest, observer, "fatal", (0x40000, 0), 0.7, record_property)
    assert len(facts) == 23
    faults = of_kind(observer.lines()[mark:], "DeviceFault")
    assert len(faults) == 23
    assert {(f["code"], f["pid"], f["ends_job"]) for f in faults} == {
        ("AER fatal", observer.member, True)
    }


@pytest.mark.family("aer")
@needs_driver
def test_an_error_of_the_port_above_is_the_gpus(guest: Guest, observer: Observer) -> None:
    mark = observer.mark()
    guest.python(f"inject('{PORT}', 0x20, 0)")
    (fault,) = observer.facts("DeviceFault", 1, mark)
    assert fault["device"] == GPU
    assert fault["pid"] == observer.member
    assert PORT in fault["text"]
    assert "Surprise Down Error" in fault["text"]


TRACED = "/sys/kernel/tracing/events/ras/aer_event"
OTHER_NAMES = {"RELAY_NUM Rollover": "Replay Number Rollover"}
"""The kernel's name -> that of the specification."""


@pytest.mark.family("aer")
@pytest.mark.parametrize("kind", ["corrected", "uncorrected"])
def test_every_bit_has_the_kernels_name(guest: Guest, observer: Observer, kind: str) -> None:
    """Of an endpoint the kernel does not read what a fatal error was: the port above has those."""
    device, mask, bits = GPU, "14", set(CORRECTED_BITS)
    if kind == "uncorrected":
        # the kernel has no name for the 26th
        device, mask, bits = PORT, "08", set(UNCORRECTED_BITS) - {26}
    word = sum(1 << bit for bit in bits)
    words = f"0, {word}" if kind == "corrected" else f"{word}, 0"
    guest.shell(f"setpci -s {device} ECAP_AER+{mask}.l=0")
    # with an advisory error newer kernels (7.3) report what is pending, too: nothing of the tests before may be.
    # Written are the bits that are set: of others aer_inject sets those
    status = f"setpci -s {device} ECAP_AER+04.l"
    guest.shell(f"{status}=$({status})")
    mark = observer.mark()
    guest.shell(f"echo >{TRACED}/../../../trace; echo 1 >{TRACED}/enable")
    guest.python(f"inject('{device}', {words}); time.sleep(1)")
    (fact,) = observer.facts("AerError", 1, mark)
    trace = guest.shell(f"echo 0 >{TRACED}/enable; cat {TRACED}/../../../trace")
    (said,) = re.findall(r"severity=(?:Corrected|Fatal), (.+), TLP Header", trace)
    names = [OTHER_NAMES.get(name, name) for name in said.split("|")]
    assert len(fact["errors"]) == len(bits)
    assert [_short(name) for name in fact["errors"]] == [_short(name) for name in names]


def _short(name: str) -> str:
    return name.removesuffix(" Error")


@pytest.mark.family("storm")
def test_a_storm_of_corrected_errors_is_counted(
    guest: Guest, observer: Observer, record_property: Figure
) -> None:
    mark, before = observer.mark(), counter(guest, "cor")
    guest.python(f"inject('{GPU}', 0, 0x1, 10000); time.sleep(2)", timeout_s=300)
    happened = counter(guest, "cor") - before
    facts = aer_counts(observer, mark, happened)
    passes = len([line for line in observer.lines()[mark:] if "cpu_s" in line])
    reported = sum(fact["count"] for fact in facts)
    record_property("errors_reported", f"{reported} of {happened}")
    assert happened > 1000
    assert reported == happened
    assert len(facts) <= 2 * passes
