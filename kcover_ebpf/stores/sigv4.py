"""AWS Signature Version 4, as far as requests for a single S3 object need it.

Pure. Source: "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk (AWS
Signature Version 4)" in the Amazon S3 API Reference, whose example is in the tests.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import field
from urllib.parse import quote

from kcover_ebpf.dataclass import dataclass

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Access key of a store; its secrets are excluded from repr()."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    """Token of temporary credentials; empty for permanent ones."""


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """One request to be signed."""

    method: str
    host: str
    """Host header: includes the port if the address has one."""
    path: str
    """Path of the object, beginning with "/"; not yet percent-encoded."""
    region: str
    payload: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers, with lower-case names; they are signed too."""


def quoted(path: str) -> str:
    """The percent-encoded path, as it is sent and signed."""
    return quote(path, safe="/-_.~")


def signed_headers(
    request: ObjectRequest, credentials: Credentials, clock_text: str
) -> dict[str, str]:
    """All headers to send except Host; `clock_text`: time in UTC such as 20260102T030405Z."""
    payload_hash = hashlib.sha256(request.payload).hexdigest()
    headers = {**request.headers, "x-amz-content-sha256": payload_hash, "x-amz-date": clock_text}
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names, canonical = _canonical({**headers, "host": request.host})
    asked = f"{request.method}\n{quoted(request.path)}\n\n{canonical}\n{names}\n{payload_hash}"
    day = clock_text[:8]
    scope = f"{day}/{request.region}/s3/aws4_request"
    digest = hashlib.sha256(asked.encode()).hexdigest()
    key = f"AWS4{credentials.secret_key}".encode()
    for word in (day, request.region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    text = f"{_ALGORITHM}\n{clock_text}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={credentials.access_key}/{scope}"
    headers["authorization"] = (
        f"{_ALGORITHM} {credential},SignedHeaders={names},Signature={signature}"
    )
    return headers


def _canonical(headers: Mapping[str, str]) -> tuple[str, str]:
    """Header names joined by ";", and one line per header."""
    ordered = sorted((name, " ".join(value.split())) for name, value in headers.items())
    names = ";".join(name for name, _ in ordered)
    return names, "".join(f"{name}:{value}\n" for name, value in ordered)
