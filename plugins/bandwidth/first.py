"""The first pod of a job: waits for the others, measures, and finds the pods with slow nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from . import starts
from .all_reduce import Measured, measure, ring_phases
from .link import GATHER_S, LINK_S, MEASURE_S, PORT, MeasuredLink
from .place import NODE, BandwidthOutcome, PodPlace, Unknown, gpus

_HELLO_S = 5.0
_MOST_SLOTS = 64
_RUNS_AT_ONCE = 8
"""Most pairs measured at the same time: each is an mpirun of 20 MB on the first pod."""
_ALL_S, _PART_S = MEASURE_S / 2, MEASURE_S / 9
"""Time limit for the run of all pods, and for each of at most four phases that find the slow one."""
_RING = 3
"""Smallest ring: of two pods that are slow together, neither can be blamed."""


@dataclass
class _Member:
    """A pod of the job, as the first pod knows it."""

    address: str
    slots: int
    """Number of GPUs, which is the number of processes that mpirun may start there."""
    node: str
    link: MeasuredLink | None = None
    """Connection to the pod; None for the first pod itself."""
    ended: dict[int, int] = field(default_factory=dict)
    """Command number -> exit code of commands started there."""
    news: threading.Condition = field(default_factory=threading.Condition)
    is_lost: bool = False

    def send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            if self.link is not None:
                self.link.send(message)

    def listen(self) -> None:
        """Receive messages until the pod disconnects; runs in a thread."""
        assert self.link is not None
        with contextlib.suppress(ValueError, TypeError):
            for message in self.link.messages():
                with self.news:
                    self.ended[int(message["ended"])] = int(message["code"])
                    self.news.notify_all()
        with self.news:
            self.is_lost = True
            self.news.notify_all()


class First:
    """One bandwidth check, as the first pod runs it."""

    def __init__(self, place: PodPlace, floor: float, folder: Path) -> None:
        """`floor`: required bus bandwidth in GB/s. `folder`: a private folder for a socket."""
        self._count, self._floor = place.count, floor
        self._members: dict[int, _Member] = {}
        self._socket = folder / "starts"
        self._numbers = count()
        self._until_s = 0.0

    def run(self) -> BandwidthOutcome:
        """Run the check. Raises `Unknown` after all other pods were sent the same result."""
        try:
            self._gather()
            self._until_s = time.monotonic() + MEASURE_S
            outcome = self._judged()
        except (Unknown, OSError) as reason:
            self._send_all({"result": f"unknown: {reason}"})
            raise
        self._send_all({"result": outcome.text, "slow": outcome.slow})
        return outcome

    def _send_all(self, message: Mapping[str, Any]) -> None:
        for member in self._members.values():
            member.send(message)

    def _gather(self) -> None:
        deadline_s = time.monotonic() + GATHER_S
        with socket.create_server(("", PORT)) as listener:
            while len(self._members) < self._count:
                listener.settimeout(max(0.001, deadline_s - time.monotonic()))
                try:
                    connection, address = listener.accept()
                except OSError as error:
                    there = max(1, len(self._members))
                    text = f"{there} of {self._count} pods came within {GATHER_S:.0f} s"
                    raise Unknown(text) from error
                with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                    self._welcome(connection, str(address[0]))

    def _welcome(self, connection: socket.socket, address: str) -> None:
        connection.settimeout(_HELLO_S)
        link = MeasuredLink(connection)
        hello = next(link.messages(), {})
        index, slots = int(hello["index"]), int(hello["slots"])
        if not (0 < index < self._count and 0 < slots <= _MOST_SLOTS):
            link.close()
            return
        connection.settimeout(LINK_S)
        # by the address that others see, because a pod may have several
        self._members[0] = _Member(connection.getsockname()[0], gpus(), os.environ.get(NODE, ""))
        member = _Member(address, slots, str(hello.get("node", "")), link)
        self._members[index] = member
        threading.Thread(target=member.listen, daemon=True).start()

    def _judged(self) -> BandwidthOutcome:
        if shutil.which("all_reduce_perf") is None:
            raise Unknown("all_reduce_perf is not on the PATH: build nccl-tests with MPI=1")
        if shutil.which("mpirun") is None:
            raise Unknown("mpirun is not on the PATH: install Open MPI")
        everyone = tuple(sorted(self._members))
        with starts.serving(self._socket, self._start):
            whole = self._measure(everyone, _ALL_S)
            if not whole.is_known:
                raise Unknown(whole.text)
            words = f"{self._count} pods: {whole.text}, floor {self._floor:g}"
            if not whole.is_below(self._floor):
                return BandwidthOutcome(f"pass: {words}")
            slow = self._slow_alone(everyone) or self._slow_in_pairs(everyone)
        if not slow:
            return BandwidthOutcome(f"warn: {words}; no single node is the cause")
        names = ", ".join(
            self._members[number].node or self._members[number].address for number in slow
        )
        return BandwidthOutcome(f"fail: {words}; slow: {names}", slow)

    def _slow_alone(self, everyone: Sequence[int]) -> tuple[int, ...]:
        """Pods whose own GPUs are slow among themselves; a pod with one GPU cannot be tested like this."""
        several = [(number,) for number in everyone if self._members[number].slots > 1]
        found = self._measure_all(several)
        return tuple(group[0] for group, one in found.items() if one.is_below(self._floor))

    def _slow_in_pairs(self, everyone: Sequence[int]) -> tuple[int, ...]:
        """Pods that are slow with both neighbours in a ring, while other pairs are not slow."""
        found: dict[tuple[int, ...], Measured] = {}
        if len(everyone) >= _RING:
            for phase in ring_phases(len(everyone)):
                found.update(self._measure_all(phase))
        if all(one.is_below(self._floor) for one in found.values()):
            return ()
        return tuple(
            number
            for number in everyone
            if all(one.is_below(self._floor) for pair, one in found.items() if number in pair)
        )

    def _measure_all(self, groups: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Measured]:
        """Measure several disjoint groups in parallel."""
        with ThreadPoolExecutor(_RUNS_AT_ONCE) as pool:
            found = list(pool.map(lambda group: self._measure(group, _PART_S), groups))
        return {group: found[i] for i, group in enumerate(groups)}

    def _measure(self, group: Sequence[int], limit_s: float) -> Measured:
        members = [self._members[number] for number in group]
        limit_s = min(limit_s, max(1.0, self._until_s - time.monotonic()))
        slots = {member.address: member.slots for member in members}
        measured = measure(slots, starts.environment(self._socket), limit_s)
        if measured is not None:
            return measured
        for member in members:
            member.send({"kill": True})
        text = f"all_reduce_perf did not end within {limit_s:.0f} s"
        return Measured(None, is_wrong=False, text=text)

    def _start(self, host: str, command: str) -> int:
        """Start a command on another pod for mpirun; returns its exit code."""
        member = next((x for x in self._members.values() if x.address == host), None)
        if member is None or member.link is None:
            return starts.LOST
        number = next(self._numbers)
        member.send({"start": number, "command": command})
        with member.news:
            member.news.wait_for(lambda: member.is_lost or number in member.ended)
            return member.ended.get(number, starts.LOST)
