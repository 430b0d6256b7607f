"""Runs inside a guest: the kernel half and the device watch, each fact a JSON line in a file.

observer.py OUTPUT [--pin-driver] [MEMBER_PID...]: writes a line {"ready": ...} first, then one for each fact, with
`reported_ns`, the boottime at which it was there.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from kcover_ebpf.devices.catalog.files import shipped
from kcover_ebpf.devices.watch import DeviceWatch
from kcover_ebpf.facts.devices import AnnouncedFault
from kcover_ebpf.facts.kernel import Fact
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings

PERIOD_S = 0.25
SELF_TEST_S = 10.0
"""On every kernel one of the probes reports the self-test's line, after a second at most where the host is idle."""


def write_fact(out: TextIO, fault: Fact | AnnouncedFault) -> None:
    # what is announced of this node has a fact of its own for each process
    if not isinstance(fault, AnnouncedFault):
        write(out, as_json(fault))


def as_json(fact: Fact) -> dict[str, Any]:
    words = {
        item.name: value.value if isinstance(value := getattr(fact, item.name), Enum) else value
        for item in dataclasses.fields(fact)
    }
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return {"fact": type(fact).__name__, "reported_ns": now_ns, **words}


def write(out: TextIO, line: dict[str, Any]) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


def main() -> None:
    output, *rest = sys.argv[1:]
    pids = {Pid(int(word)) for word in rest if word.isdecimal()}
    settings = Settings()
    with (
        Path(output).open("w") as out,
        KernelSampler.open(settings) as kernel,
        DeviceWatch(kernel.maps, settings, shipped, pin_driver="--pin-driver" in rest) as watch,
    ):
        end_s = time.monotonic() + SELF_TEST_S
        while not watch.console_works and time.monotonic() < end_s:
            for fact in kernel.wait(0.2):
                watch.observe(fact, pids)
            watch.hear_lines()
        probes = {f"{s.family}.{s.probe}": s.reason for s in watch.statuses}
        write(out, {"ready": watch.rung.value, "console": watch.console_works, "probes": probes})
        while True:
            for fact in kernel.wait(PERIOD_S):
                for item in (fact, *watch.observe(fact, pids)):
                    write_fact(out, item)
            for item in watch.tick(pids):
                write_fact(out, item)
            write(out, {"cpu_s": time.process_time(), "rung": watch.rung.value})


if __name__ == "__main__":
    main()
