"""A supervisor whose job ends as the test says; it notes its orders."""

import os
import signal
from collections.abc import Mapping

from kcover_ebpf.errors import ActionError, KcoverError


class FakeSupervisor:
    """Ends the job after so many polls, unless it is killed before."""

    def __init__(self, polls: int = 3, code: int = 0) -> None:
        self.job_pid: int | None = os.getpid()
        self.job_code: int | None = None
        self.left_behind_count = 0
        self.unkillable: tuple[int, ...] = ()
        self.lost = False
        self.orders: list[str] = []
        self.stuck: tuple[int, ...] = ()
        self.start_error: KcoverError | None = None
        self._polls, self._end_code = polls, code
        self._reader, self._writer = os.pipe()
        os.write(self._writer, b"news")

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def poll(self) -> None:
        self._polls -= 1
        if self._polls <= 0 and self.job_code is None:
            self.job_code = self._end_code

    def start(self) -> int:
        self.orders.append("start")
        if self.start_error is not None:
            raise self.start_error
        self.job_code = None
        return os.getpid()

    def follow(self, identities: Mapping[int, int]) -> None:
        self.orders.append(f"follow {sorted(identities)}")

    def forward(self, number: int) -> None:
        self.orders.append(f"forward {signal.Signals(number).name}")

    def end(self, grace_s: float, *, ask: bool = True) -> None:
        self.orders.append(f"end {grace_s:g}")
        self.job_code = -15

    def kill(self) -> None:
        self.orders.append("kill")

    def kill_and_wait(self) -> tuple[int, ...]:
        self.orders.append("kill")
        if self.lost:
            raise ActionError("the supervisor died")
        self.job_code = None if self.stuck else -9
        self.unkillable = self.stuck
        return self.stuck
