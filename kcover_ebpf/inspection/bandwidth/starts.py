"""What mpirun runs in the place of ssh: `python -m kcover_ebpf.inspection.bandwidth.starts SOCKET HOST WORD...`.

It hands the command over to the first pod's program, which has a connection to each other pod.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from kcover_ebpf.inspection.bandwidth.link import MeasuredLink

LOST = 255
"""As ssh ends where there is no connection."""


@contextlib.contextmanager
def serving(path: Path, start: Callable[[str, str], int]) -> Iterator[None]:
    """Answer it at this socket; `start` has host and command, waits, and returns the exit code."""
    with contextlib.suppress(OSError):
        path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_accept, args=(listener, start), daemon=True).start()
        yield


def _accept(listener: socket.socket, start: Callable[[str, str], int]) -> None:
    with contextlib.suppress(OSError):
        while True:
            link = MeasuredLink(listener.accept()[0])
            threading.Thread(target=_serve, args=(link, start), daemon=True).start()


def _serve(link: MeasuredLink, start: Callable[[str, str], int]) -> None:
    with contextlib.suppress(OSError):
        for asked in link.messages():
            link.send({"code": start(str(asked.get("host")), str(asked.get("command")))})


def _environment(agent: str) -> dict[str, str]:
    """Of Open MPI 4 (OMPI) and 5 (PRTE): how another pod is reached, from this one alone; root is usual in a pod."""
    found: dict[str, str] = {}
    for name, plm, runtime in (("OMPI", "rsh", "orte"), ("PRTE", "ssh", "prte")):
        # its daemon stays where it can be ended, in the session of what we started
        found[f"{name}_MCA_{runtime}_leave_session_attached"] = "1"
        found[f"{name}_MCA_plm_{plm}_agent"] = agent
        found[f"{name}_MCA_plm_{plm}_no_tree_spawn"] = "1"
        found[f"{name}_ALLOW_RUN_AS_ROOT"] = "1"
        found[f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return found


def environment(path: Path) -> dict[str, str]:
    """That of an mpirun which starts things by way of the socket."""
    ours = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    agent = f"{sys.executable} -m {__spec__.name} {path}"
    return {**os.environ, **_environment(agent), "PYTHONPATH": paths}


def main() -> int:
    """The exit code of what was started."""
    path, host, *words = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    link = MeasuredLink(connection)
    link.send({"host": host, "command": " ".join(words)})
    return int(next(link.messages(), {}).get("code", LOST))


if __name__ == "__main__":
    sys.exit(main())
