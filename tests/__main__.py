"""`python -m tests`: what `make test` runs, at the same time as far as it waits more than it works.

Tests of the cluster and of the kernel wait for clocks, ranks and kubelets; those of `tests/unit` and `make check`
compute. So all run side by side, the latter two with low priority; the first time, a Kubernetes is built before the
former two begin, which would wait in vain beside its compilers, and our image meanwhile. Those of the kernel that bear
no others of their priority beside them (marker `alone`) begin last. What each wrote is in build/tests, and is printed
at the end if it failed. The last line sums up, as pytest does.

Real ranks, kernels and clocks beside each other on two cores: now and then a test comes too late. A few that failed are
run once more, by themselves. One that passes then is `flaky`: it fails nothing, but is printed, counted, and to be
mended.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.cluster.layout import cache_folder

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/tests"
LOW_PRIORITY = 19
"""Niceness: a process gets what the others of its core leave, so that compilers do not wait for what computes."""
COUNTED = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|warnings?)\b")
POLL_S = 0.2
MOST_FLAKY = 3
"""Failures of a part up to which it may have been chance; more than that are a fault of the change."""
TESTS_FAILED = 1
"""Exit code of pytest."""
NOTHING_SELECTED = 5
"""Exit code of pytest."""
PYTEST = (sys.executable, "-m", "pytest")
AGAIN = "-again"
PROGRAMS, IMAGE = "programs", "image"


@dataclass(frozen=True)
class Part:
    """One run of pytest, or of what `command` names instead."""

    name: str
    arguments: tuple[str, ...]
    niceness: int = 0
    command: tuple[str, ...] = PYTEST
    after: tuple[str, ...] = ()
    """The parts that have to end before this one begins."""


PARTS = (
    Part(PROGRAMS, ("build",), command=("tools/testbed",)),
    Part(IMAGE, ("first",), command=("tools/image",)),
    Part("cluster", ("tests/cluster", "-m", "core"), after=(PROGRAMS,)),
    Part(
        "kernel",
        ("tests/kernel", "-m", "not long and not alone", "--numprocesses=3", "--dist=worksteal"),
        after=(PROGRAMS,),
    ),
    Part(
        "unit",
        ("tests/unit", "-m", "not long", "--numprocesses=3", "--dist=worksteal"),
        LOW_PRIORITY,
    ),
    Part("check", ("check",), LOW_PRIORITY, ("make", "--no-print-directory")),
    Part(
        "kernel-alone",
        ("tests/kernel", "-m", "alone and not long"),
        after=(PROGRAMS, IMAGE, "cluster", "kernel"),
    ),
)


class Running:
    """A part under way; its output goes to a file."""

    def __init__(self, part: Part, more: Sequence[str]) -> None:
        self.part, self.log = part, LOGS / f"{part.name}.log"
        self.began_s = time.monotonic()
        command = [*part.command, *part.arguments]
        if part.command is PYTEST:
            command += ["-o", f"cache_dir={LOGS / part.name.removesuffix(AGAIN)}.cache", *more]
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                ["nice", f"--adjustment={part.niceness}", *command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for us alone: a second one would cut off what they clean up
            )

    @property
    def has_failed(self) -> bool:
        """Of one that has ended."""
        return self.process.returncode not in (0, NOTHING_SELECTED)

    @property
    def may_be_flaky(self) -> bool:
        """Whether a few tests failed, and nothing else did."""
        counts = self.counts()
        is_few = 1 <= counts["failed"] + counts["error"] <= MOST_FLAKY
        return self.process.returncode == TESTS_FAILED and is_few

    def lines(self) -> list[str]:
        """What it has written."""
        return self.log.read_text(errors="replace").splitlines()

    def counts(self) -> Counter[str]:
        """How many tests passed, failed and so on, by its last line; empty of what is no pytest."""
        if self.part.command is not PYTEST:
            return Counter()
        last = next((line for line in reversed(self.lines()) if COUNTED.search(line)), "")
        return Counter({word.rstrip("s"): int(number) for number, word in COUNTED.findall(last)})


def run(parts: Sequence[Part], more: Sequence[str]) -> list[Running]:
    """Side by side, each once the part has ended that it comes after, until all have ended."""
    waiting, begun = list(parts), list[Running]()
    under_way: list[Running] = []
    try:
        while waiting or under_way:
            ahead = {one.part.name for one in under_way} | {one.name for one in waiting}
            for part in [one for one in waiting if ahead.isdisjoint(one.after)]:
                waiting.remove(part)
                begun.append(Running(part, more))
                under_way.append(begun[-1])
            time.sleep(POLL_S)
            for running in [one for one in under_way if one.process.poll() is not None]:
                under_way.remove(running)
                took_s = time.monotonic() - running.began_s
                print(f"tests: {running.part.name} ended after {took_s:.0f} s", flush=True)
                print("\n".join(_end_of(running.lines())), flush=True)
    finally:
        for running in begun:
            if running.process.poll() is None:  # we are being ended; a test bed is to be taken down
                running.process.send_signal(signal.SIGINT)
                running.process.wait()
    return begun


def again(part: Part) -> Part:
    """Those of its tests that failed, one after the other."""
    alone = [
        argument
        for argument in part.arguments
        if not argument.startswith(("--numprocesses", "--dist"))
    ]
    return Part(part.name + AGAIN, (*alone, "--last-failed", "--last-failed-no-failures=none"))


def _end_of(lines: Sequence[str]) -> Sequence[str]:
    """The skips and failures by name, and the last line."""
    for number, line in enumerate(lines):
        if "short test summary info" in line:
            return lines[number:]
    return lines[-1:]


def summary(counts: Counter[str], seconds: float) -> str:
    """As pytest ends: "===== 2 failed, 40 passed in 9.00s ====="."""
    order = ("failed", "error", "passed", "flaky", "skipped", "xfailed", "warning")
    text = ", ".join(f"{counts[word]} {word}" for word in order if counts[word])
    return f" {text or 'no tests'} in {seconds:.2f}s ".center(80, "=")


def main(more: Sequence[str]) -> int:
    """`more` goes to each pytest, such as `--durations=40`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    LOGS.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    os.environ.setdefault("KCOVER_IMAGE_CACHE", str(cache_folder() / "project-image"))
    is_elsewhere = "KUBECONFIG" in os.environ  # the tests use that cluster, and none is to be built
    parts = [part for part in PARTS if part.name not in (PROGRAMS, IMAGE) or not is_elsewhere]
    ended = run(parts, more)
    counts = sum((other_running.counts() for other_running in ended), Counter[str]())
    failed = [other_running for other_running in ended if other_running.has_failed]
    for running in failed:
        print(f"\ntests: {running.part.name} failed\n" + "\n".join(running.lines()), flush=True)
    for running in [other_running for other_running in failed if other_running.may_be_flaky]:
        (once_more,) = run([again(running.part)], more)
        before = running.counts()
        flaky = before["failed"] + before["error"]
        if once_more.process.returncode == 0 and once_more.counts()["passed"] == flaky:
            print(
                f"tests: {running.part.name}: passes by itself, so chance: mend what is printed above"
            )
            # one whose teardown failed has passed already
            counts += Counter({"passed": before["failed"], "flaky": flaky})
            counts -= Counter({"failed": before["failed"], "error": before["error"]})
            failed.remove(running)
    print(summary(counts, time.monotonic() - began_s))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
