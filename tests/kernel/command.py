"""How the tests start the real `kcover-ebpf`, and read what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kcover_ebpf.host import cgroups, process_tree
from tests.waiting import until

COMMAND = str(Path(sys.executable).with_name("kcover-ebpf"))
PYTHON = "/usr/bin/python3"
PATIENCE_S = 60.0


def own_group(pid: int) -> Path:
    """Where the sensor with this pid makes the group of its job."""
    (unified,) = (
        hierarchy
        for hierarchy in cgroups.hierarchies(Path("/proc/self/mountinfo").read_text())
        if hierarchy.unified
    )
    own = next(
        line.removeprefix("0::")
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if line.startswith("0::")
    )
    return unified.directory(own) / f"kcover-run-{pid}"


def is_alive(pid: int) -> bool:
    stat = process_tree.read_stat(pid)
    return stat is not None and stat.alive


class Run:
    """A `kcover-ebpf run` in its own session."""

    def __init__(self, *arguments: str, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            # the tests themselves may run under nohup, and what is ignored is inherited
            ["env", "--default-signal=HUP", *prefix, COMMAND, "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.group = own_group(self.pid)
        self.out = ""
        self.err = ""

    def members(self) -> set[int]:
        return cgroups.processes(self.group)

    def await_members(self, count: int) -> set[int]:
        until(lambda: len(self.members()) >= count, f"{count} processes in {self.group}")
        return self.members()

    def supervisor(self) -> int:
        """The only child of the sensor."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        (supervisor,) = (int(child) for child in children)
        return supervisor

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self, patience_s: float = PATIENCE_S) -> int:
        self.out, self.err = self.process.communicate(timeout=patience_s)
        return self.process.returncode

    def await_fact(self, kind: str) -> None:
        """Read its JSON lines until one is of this fact, or all; `reap` reads the rest."""
        self._await("fact", kind)

    def await_verdict(self, cause: str) -> None:
        """The same for a verdict of this cause."""
        self._await("cause", cause)

    def await_restart(self, number: int) -> None:
        """The same for the start of the job after its restart of this number."""
        self._await("restart", number)

    def _await(self, field: str, value: str | int) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.out += line
            if json.loads(line).get(field) == value:
                return

    def reap(self) -> int:
        """After a signal: the job, which may continue, may hold our standard error, never our output."""
        assert self.process.stdout is not None
        self.out += self.process.stdout.read()
        return self.process.wait(PATIENCE_S)

    def events(self) -> list[dict[str, Any]]:
        """The JSON lines of its standard output, which holds nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]


@contextmanager
def run(*arguments: str, folder: Path, prefix: Sequence[str] = ()) -> Iterator[Run]:
    """Start it; afterwards nothing may be left: no process of the job, no supervisor, no group."""
    one = Run(*arguments, folder=folder, prefix=prefix)
    seen: set[int] = set()
    try:
        yield one
        seen = one.members() if one.process.poll() is None else set()
    finally:
        if one.process.poll() is None:
            one.process.kill()
            if cgroups.can_kill(one.group):
                cgroups.kill_as_one(one.group)
            one.process.communicate(timeout=PATIENCE_S)
        for pipe in (one.process.stdout, one.process.stderr):
            if pipe is not None:
                pipe.close()
    until(lambda: not any(is_alive(pid) for pid in seen), "the job to end")
    until(lambda: not one.group.exists(), f"{one.group} to be removed")


def done(
    *arguments: str, folder: Path, stdin: str = "", prefix: Sequence[str] = (), **options: Any
) -> Any:
    """Run it to its end."""
    return subprocess.run(
        [*prefix, COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def environment(**values: str) -> dict[str, str]:
    return {**os.environ, **values}


def impatient(folder: Path) -> tuple[str, str]:
    """Options of a policy that gives an inferred fault two seconds; its file is put into the folder."""
    policy = folder / "impatient.toml"
    policy.write_text('act_floor = "1s"\nact_cap = "2s"\n')
    return "--policy", str(policy)
