"""Turns failures of requests to an API server into our errors, with one readable line each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kcover_ebpf.errors import ApiError, Conflict, Forbidden, Gone, NotFound, Unreachable

_MOST_ERROR_TEXT = 300
_KINDS: Mapping[int, type[ApiError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: Unreachable,
}


def refusal(method: str, path: str, response: Any) -> ApiError:
    """The error for a response of 300 and above; the response is read and released."""
    try:
        body = json.loads(response.read(65536))
        reason = str(body.get("message", "")) if isinstance(body, dict) else ""
    except Exception:  # noqa: BLE001 - what a proxy sends in place of a status may be anything
        reason = ""
    finally:
        response.release_conn()
    status = int(response.status)
    wait = response.headers.get("Retry-After", "")
    # a redirect is the answer of a proxy
    kind = _KINDS.get(status, ApiError if 400 <= status < 500 else Unreachable)
    text = f"{method} {path}: {status} {' '.join(reason.split())[:_MOST_ERROR_TEXT]}".rstrip()
    return kind(text, status, float(wait) if wait.isdecimal() else None)


def unreachable(method: str, path: str, error: Exception) -> Unreachable:
    """The error for a missing or unreadable response."""
    return Unreachable(f"{method} {path}: {said(error)}".strip())


def said(error: BaseException) -> str:
    """An exception as one line of text."""
    # urllib3 wraps the reason, and writes addresses of objects into its messages
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return said(reason)
    text = str(error).rpartition("object at ")[2].partition(">: ")[2] or str(error)
    return " ".join((text or type(error).__name__).split())[:_MOST_ERROR_TEXT]
