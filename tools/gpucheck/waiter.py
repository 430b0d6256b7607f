"""The process that waits for its device: `waiter HOW SCHEDULING SITUATION SECONDS`; its first thread does it all."""

from __future__ import annotations

import sys
import time

from tools.gpucheck.cuda import Driver, Scheduling, Work
from tools.gpucheck.plan import NotPossible

LAUNCHES = 8192
"""More than the queue of any known driver accepts (1,024) without waiting."""


def main(how: str, scheduling: str, situation: str, seconds: float) -> int:
    driver = Driver()
    driver.initialize()
    if how == "primary":
        driver.use_primary_context(Scheduling[scheduling])
    else:
        driver.create_context(Scheduling[scheduling])
    work = Work(driver)
    # compiled and loaded before anything is measured
    work.wait(1000)
    work.synchronize()
    print("waiting", flush=True)
    work.wait(int(seconds * 1e9))
    longest_s, longest_at = 0.0, 0
    if situation == "queue":
        for number in range(LAUNCHES):
            launch_s = time.monotonic()
            work.wait(1000)
            took_s = time.monotonic() - launch_s
            if took_s > longest_s:
                longest_s, longest_at = took_s, number + 1
    work.synchronize()
    print(f"over {longest_s:.3f} {longest_at}", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
    except NotPossible as problem:
        print(problem)
        sys.exit(1)
