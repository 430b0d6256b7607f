"""PCI Express Advanced Error Reporting: names of the status bits, and error counts without losses. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kcover_ebpf.facts.devices import AerError, AerSeverity, AerTotal

# PCI Express Base Specification 6.0, 7.8.4.5 and 7.8.4.2: the error status registers
CORRECTED_BITS = {
    0: "Receiver Error",
    6: "Bad TLP",
    7: "Bad DLLP",
    8: "Replay Number Rollover",
    12: "Replay Timer Timeout",
    13: "Advisory Non-Fatal Error",
    14: "Corrected Internal Error",
    15: "Header Log Overflow",
}
UNCORRECTED_BITS = {
    0: "Undefined",
    4: "Data Link Protocol Error",
    5: "Surprise Down Error",
    12: "Poisoned TLP",
    13: "Flow Control Protocol Error",
    14: "Completion Timeout",
    15: "Completer Abort",
    16: "Unexpected Completion",
    17: "Receiver Overflow",
    18: "Malformed TLP",
    19: "ECRC Error",
    20: "Unsupported Request",
    21: "ACS Violation",
    22: "Uncorrectable Internal Error",
    23: "MC Blocked TLP",
    24: "AtomicOp Egress Blocked",
    25: "TLP Prefix Blocked",
    26: "Poisoned TLP Egress Blocked",
}


def names(severity: AerSeverity, status: int) -> tuple[str, ...]:
    """The errors in a status register, lowest bit first; bits without a name as "bit N"."""
    known = CORRECTED_BITS if severity is AerSeverity.CORRECTED else UNCORRECTED_BITS
    return tuple(known.get(bit, f"bit {bit}") for bit in range(32) if status >> bit & 1)


class AerCounter:
    """Turns the growing totals of the BPF map into errors since the last report.

    A ring-buffer record and a later read of the map may report the same errors; each error is counted once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, AerSeverity], int] = {}

    def on_total(self, total: AerTotal) -> AerError | None:
        """The errors that a record adds; None if a read of the map has already counted them."""
        return self._add(total, 1) if total.total == 0 else self._since(total)

    def on_totals(self, totals: Iterable[AerTotal]) -> list[AerError]:
        """The errors that a read of all totals adds, i.e. those whose records were lost."""
        return [error for total in totals if (error := self._since(total)) is not None]

    def _since(self, total: AerTotal) -> AerError | None:
        key = (total.device, total.severity)
        count = total.total - self._known.get(key, 0)
        if count <= 0:
            return None
        self._known[key] = total.total
        return self._add(total, count)

    def _add(self, total: AerTotal, count: int) -> AerError:
        errors = names(total.severity, total.status)
        return AerError(
            total.boottime_ns, total.device, total.severity, total.status, errors, count
        )
