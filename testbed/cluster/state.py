"""What a test bed remembers between two commands: .testbed/state.json."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from testbed.cluster import cgroups
from testbed.cluster.errors import Failure, Usage
from testbed.cluster.layout import Bed
from testbed.cluster.processes import Process, boot_id

LOCK_PATIENCE_S = 1800.0


@dataclass(slots=True)
class State:
    """Written after every change, so that nothing is forgotten when `up` is killed."""

    bed: Bed
    boot: str
    kubernetes: str
    """The version with its patch number, such as v1.36.3."""
    api_port: int
    nodes: int
    controllers: list[str] = field(default_factory=list)
    processes: dict[str, Process] = field(default_factory=dict)

    def save(self) -> None:
        """Replace the file at once: a reader never sees half of it."""
        fields = asdict(self)
        del fields["bed"]
        file = self.bed.folder / "state.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps(fields, indent=1))
        new.replace(file)

    def holder(self, node_name: str) -> int:
        """The pid of the process that holds a node's namespaces."""
        return self.processes[f"{node_name}-holder"].pid


def load(bed: Bed) -> State | None:
    """The state of a test bed that was started since the machine booted; None when there is none."""
    try:
        fields = json.loads((bed.folder / "state.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    if fields["boot"] != boot_id():
        return None
    processes = {name: Process(**process) for name, process in fields.pop("processes").items()}
    return State(bed=bed, processes=processes, **fields)


def owner(bed: Bed) -> str | None:
    """The folder of the running test bed of this name, whichever checkout it belongs to."""
    try:
        return str(bed.mark.readlink())
    except FileNotFoundError:
        return None


def check_owner(bed: Bed) -> None:
    """Raise Usage when the test bed of this name runs, and belongs to another checkout.

    What one left behind that was killed, or whose machine or container was stopped, belongs to no one:
    the next `up` or `down` clears it away.
    """
    folder = owner(bed)
    if folder is None or folder == str(bed.folder):
        return
    if os.path.isdir(folder) and cgroups.members(bed.cgroup):  # noqa: PTH112
        raise Usage(
            f"a test bed named {bed.name!r} already runs from {os.path.dirname(folder)}: "  # noqa: PTH120
            "use its kubeconfig, or choose another --name"
        )


@contextmanager
def locked(bed: Bed) -> Iterator[None]:
    """One command at a time changes a test bed; the kernel drops the lock when we die."""
    lock = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    said = False
    while True:
        try:
            lock.bind(f"\0{bed.prefix}.testbed")
        except OSError as error:
            if time.monotonic() > deadline:
                raise Failure("another tools/testbed has been at work for half an hour") from error
            if not said:
                print("testbed: waiting for another tools/testbed to finish", flush=True)
                said = True
            time.sleep(0.2)
        else:
            break
    try:
        yield
    finally:
        lock.close()
