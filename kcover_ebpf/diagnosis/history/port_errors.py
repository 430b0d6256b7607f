"""RDMA ports whose error counters grow, and which processes have them open. Pure."""

from __future__ import annotations

from collections import Counter, deque

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.facts.devices import FabricErrors
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.diagnosis import LEARNED_MINUTES
from kcover_ebpf.tunables.links import (
    PORT_ERRORS_APART,
    PORT_ERRORS_FACTOR,
    PORT_ERRORS_NS,
    PORT_ERRORS_READINGS,
)
from kcover_ebpf.tunables.sampling import PAYLOAD_MINUTES_KEPT

_MOST_PORTS = 256
_MOST_NAMED = 3
"""Counters in a sentence."""


@dataclass(frozen=True, slots=True)
class ErringPort:
    """A port that counts more errors than usual."""

    port: str
    """RDMA device and port ("mlx5_0/1")."""
    device: str
    """PCI address behind it; empty for a virtual one."""
    rate_per_s: float
    counters: tuple[tuple[str, int], ...]
    """Those that grew most, and by how much in the last `PORT_ERRORS_NS`."""
    pids: frozenset[Pid]
    """The processes that have it open."""
    has_most: bool
    """It has many more errors than any other port that the job has open here."""

    @property
    def text(self) -> str:
        """A sentence."""
        where = f" ({self.device})" if self.device else ""
        grown = ", ".join(f"{name} +{count}" for name, count in self.counters)
        window_s = PORT_ERRORS_NS // NS
        return f"the error counters of RDMA port {self.port}{where} grow: {grown} in {window_s} s"


class _Port:
    """The errors of one port over time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.pids: dict[Pid, int] = {}
        """When each process was last seen to have it open."""
        self._readings: deque[tuple[int, tuple[tuple[str, int], ...]]] = deque(maxlen=64)
        self._minutes: deque[int] = deque(maxlen=PAYLOAD_MINUTES_KEPT)
        self._first_ns = self._minute_ns = 0
        """Of its first errors, and when the present minute began."""
        self._minute_count = 0

    def observe(self, errors: FabricErrors) -> None:
        self.pids[errors.pid] = now_ns = errors.boottime_ns
        if self._readings and self._readings[-1][0] >= now_ns:
            return  # another process that has it open
        if not self._first_ns:
            self._first_ns = self._minute_ns = now_ns
        self._readings.append((now_ns, errors.counters))
        self._end_minutes(now_ns)
        self._minute_count += sum(count for _, count in errors.counters)

    def _end_minutes(self, now_ns: int) -> None:
        """A minute without a fact is one without errors."""
        passed_count = (now_ns - self._minute_ns) // (60 * NS)
        if passed_count:
            self._minutes.append(self._minute_count)
            self._minutes.extend([0] * min(passed_count - 1, PAYLOAD_MINUTES_KEPT))
            self._minute_ns += passed_count * 60 * NS
            self._minute_count = 0

    def recent(self, now_ns: int) -> Counter[str]:
        """Errors in the last `PORT_ERRORS_NS` by counter; none where too few readings show any."""
        since_ns = now_ns - PORT_ERRORS_NS
        found = [counters for at_ns, counters in self._readings if at_ns > since_ns]
        counts: Counter[str] = Counter()
        for counters in found if len(found) >= PORT_ERRORS_READINGS else ():
            counts.update(dict(counters))
        self.pids = {pid: at_ns for pid, at_ns in self.pids.items() if at_ns > since_ns}
        return counts

    def usual_per_s(self, since_ns: int, now_ns: int) -> float:
        """Of the last hour, as far as the job was watched, from `since_ns` on; 0 where that is not for long.

        Its quieter quarter decides: a fault must not be usual before the slowness is that it explains.
        """
        self._end_minutes(now_ns)
        before = max(0, self._first_ns - since_ns) // (60 * NS)
        clean = [0] * min(before, PAYLOAD_MINUTES_KEPT - len(self._minutes))
        minutes = sorted([*clean, *self._minutes])
        return minutes[len(minutes) // 4] / 60 if len(minutes) >= LEARNED_MINUTES else 0.0


class PortErrorWatch:
    """The errors of the RDMA ports that the processes of a job have open."""

    def __init__(self) -> None:
        self._ports: dict[str, _Port] = {}
        self._since_ns = 0

    def watch(self, now_ns: int) -> None:
        """Called at each pass: from the first one on, a port without errors is known to have none."""
        self._since_ns = self._since_ns or now_ns

    def observe(self, errors: FabricErrors) -> None:
        """Take the errors of one port, for one of the processes that have it open."""
        if errors.port in self._ports or len(self._ports) < _MOST_PORTS:
            self._ports.setdefault(errors.port, _Port(errors.device)).observe(errors)

    def erring(self, now_ns: int, least_per_s: float = 0.0) -> ErringPort | None:
        """The port with most errors of late; None where none has `least_per_s`, and many more than usual."""
        recent = {name: port.recent(now_ns) for name, port in self._ports.items()}
        rates = {name: counts.total() * NS / PORT_ERRORS_NS for name, counts in recent.items()}
        unusual = Counter(
            {
                name: rate
                for name, rate in rates.items()
                if rate and rate >= PORT_ERRORS_FACTOR * self._usual_per_s(name, now_ns)
            }
        )
        if not unusual or max(unusual.values()) < least_per_s:
            return None
        (name, rate), *others = unusual.most_common(2)
        return ErringPort(
            name,
            self._ports[name].device,
            rate,
            tuple(recent[name].most_common(_MOST_NAMED)),
            frozenset(self._ports[name].pids),
            has_most=not others or rate >= PORT_ERRORS_APART * others[0][1],
        )

    def _usual_per_s(self, name: str, now_ns: int) -> float:
        return self._ports[name].usual_per_s(self._since_ns, now_ns)
