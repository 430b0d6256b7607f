"""Replaces ssh for mpirun: `python -m bandwidth.starts SOCKET HOST WORD...`.

It passes the command to the first pod's program, which has a connection to every other pod.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from .link import MeasuredLink

LOST = 255
"""Exit code without a connection; the same as that of ssh."""


@contextlib.contextmanager
def serving(path: Path, start: Callable[[str, str], int]) -> Iterator[None]:
    """Serve requests at this socket.

    `start` gets host and command, waits for the command, and returns its exit code.
    """
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
    """Settings of Open MPI 4 (OMPI) and 5 (PRTE): reach other pods through `agent`, from this pod only; allow root."""
    found: dict[str, str] = {}
    for name, plm, runtime in (("OMPI", "rsh", "orte"), ("PRTE", "ssh", "prte")):
        # keeps its daemon in the session of the process that we started, so that it can be ended
        found[f"{name}_MCA_{runtime}_leave_session_attached"] = "1"
        found[f"{name}_MCA_plm_{plm}_agent"] = agent
        found[f"{name}_MCA_plm_{plm}_no_tree_spawn"] = "1"
        found[f"{name}_ALLOW_RUN_AS_ROOT"] = "1"
        found[f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return found


def environment(path: Path) -> dict[str, str]:
    """Environment for an mpirun that starts commands through the socket."""
    ours = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    agent = f"{sys.executable} -m {__spec__.name} {path}"
    return {**os.environ, **_environment(agent), "PYTHONPATH": paths}


def main() -> int:
    """The exit code of the command."""
    path, host, *words = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    link = MeasuredLink(connection)
    link.send({"host": host, "command": " ".join(words)})
    return int(next(link.messages(), {}).get("code", LOST))


if __name__ == "__main__":
    sys.exit(main())
