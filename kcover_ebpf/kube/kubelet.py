"""Client of one node's kubelet: requests checkpoints of containers, which CRIU writes to the node's disk.

Source: Kubernetes' "Kubelet Checkpoint API" (ContainerCheckpoint, on by default since 1.30); pkg/kubelet/server.
Its permission is `create` on `nodes/checkpoint`.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from kcover_ebpf.errors import ApiError
from kcover_ebpf.kube.access import Access

PORT = 10250
_MOST_ANSWER = 64 << 10
_MOST_SHOWN = 240


class Kubelet:
    """Uses our own credentials; the kubelet's certificate must be of the cluster's authority. Thread-safe."""

    def __init__(self, access: Access, address: str) -> None:
        """`address`: HOST or HOST:PORT."""
        host = f"[{address}]" if address.count(":") > 1 and not address.startswith("[") else address
        has_port = host.rpartition("]")[2].count(":") == 1
        self._url = f"https://{host}" if has_port else f"https://{host}:{PORT}"
        self._access = access
        self._pool = access.pool(self._url)

    def checkpoint(
        self, namespace: str, pod: str, container: str, limit_s: float
    ) -> tuple[str, ...]:
        """Paths of the checkpoint on the node; raises `ApiError` with the kubelet's message."""
        path = "/".join(quote(part, safe="") for part in (namespace, pod, container))
        authorization = self._access.authorization()
        headers = {"Authorization": authorization} if authorization else {}
        try:
            response = self._pool.request(
                "POST", f"/checkpoint/{path}", headers=headers, timeout=limit_s, retries=False,
                preload_content=False, redirect=False,
            )  # fmt: skip
            answer = bytes(response.read(_MOST_ANSWER))
            response.close()
        except Exception as error:
            # urllib3 has many kinds of errors, and none is ours
            raise ApiError(f"the kubelet at {self._url}: {error}") from error
        if response.status != 200:
            raise ApiError(_refusal(response.status, answer))
        return _paths(answer)


def _refusal(status: int, answer: bytes) -> str:
    said = " ".join(answer.decode("utf-8", "replace").split())[:_MOST_SHOWN]
    return f"the kubelet answers {status}: {said or 'nothing else'}"


def _paths(answer: bytes) -> tuple[str, ...]:
    """Paths in {"items": [path, ...]}; raises `ApiError` for any other answer."""
    try:
        found: Any = json.loads(answer)["items"]
        return tuple(str(path) for path in found)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ApiError("the kubelet's answer is invalid") from None
