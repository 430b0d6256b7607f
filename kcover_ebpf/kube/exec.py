"""Runs a command in a container of a pod and reads its output as lines, over the API server's websocket.

Protocol: v4/v5.channel.k8s.io (k8s.io/apimachinery pkg/util/remotecommand). The websocket itself is the official
client's.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

from kcover_ebpf.errors import ApiError, Forbidden, NotFound, Unreachable
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.tunables.kube import EXEC_POLL_S

_STDOUT, _STDERR, _ERROR = 1, 2, 3
_MOST_SAID = 2000
_STATUS: dict[int, type[ApiError]] = {401: Forbidden, 403: Forbidden, 404: NotFound}


class Exec:
    """A running command. A context manager: leaving it closes the connection, and so the command's input."""

    def __init__(
        self, client: ApiClient, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> None:
        """Connect and start the command; raises `Forbidden`, `NotFound`, `Unreachable`."""
        self._client = _connect(client, namespace, pod, container, command)
        self._errors = b""
        self._status = b""

    def lines(self, beat_s: float) -> Iterator[str]:
        """Lines of its standard output until it ends; a newline is sent to it every `beat_s` seconds.

        A command that exits when the newlines stop ends with us, even if the connection is not closed properly.
        """
        rest, beat_at_s = b"", 0.0
        while self._client.is_open():
            if time.monotonic() >= beat_at_s:
                beat_at_s = time.monotonic() + beat_s
                self._send(b"\n")
            self._update()
            *whole, rest = (rest + self._client.read_channel(_STDOUT)).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace")
            self._take_rest()
        rest += self._client.read_channel(_STDOUT)
        self._take_rest()
        for line in rest.split(b"\n"):
            if line:
                yield line.decode("utf-8", "replace")

    @property
    def said(self) -> str:
        """Last text on its standard error."""
        return self._errors.decode("utf-8", "replace").strip()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the command; None while it runs, or if the connection was lost before it ended."""
        try:
            status = json.loads(self._status)
            if status["status"] == "Success":
                return 0
            causes = status.get("details", {}).get("causes", [])
            codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
            return int(codes[0])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            return None

    @property
    def refusal(self) -> str:
        """Why the command could not be started; empty if it was."""
        try:
            return "" if self.exit_code is not None else str(json.loads(self._status)["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""

    def close(self) -> None:
        """Close the connection to the container."""
        with contextlib.suppress(Exception):
            self._client.close(timeout=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _update(self) -> None:
        try:
            self._client.update(timeout=EXEC_POLL_S)
        except Exception as error:
            raise Unreachable(f"the connection to the pod broke: {_said(error)}") from error

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(Exception):  # a broken connection is seen by the next read
            self._client.write_stdin(data)

    def _take_rest(self) -> None:
        self._errors = (self._errors + self._client.read_channel(_STDERR))[-_MOST_SAID:]
        self._status += self._client.read_channel(_ERROR)


def _connect(
    client: ApiClient, namespace: str, pod: str, container: str, command: Sequence[str]
) -> Any:
    from kubernetes.stream import ws_client

    query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    query += [("tty", "false"), *(("command", word) for word in command)]
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    url = ws_client.get_websocket_url(client.host + path, query)
    headers = {key.lower(): value for key, value in client.authorization().items()}
    try:
        return ws_client.WSClient(
            client.configuration(), url, headers, capture_all=False, binary=True
        )
    except Exception as error:
        status = getattr(error, "status_code", 0)
        kind = _STATUS.get(status, Unreachable)
        raise kind(f"exec in pod {namespace}/{pod}: {_said(error)}", status) from error


def _said(error: BaseException) -> str:
    # a refused handshake carries the server's Status object as its body
    body = getattr(error, "resp_body", None)
    try:
        return str(json.loads(body or b"")["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return " ".join(str(error).split())[:300] or type(error).__name__
