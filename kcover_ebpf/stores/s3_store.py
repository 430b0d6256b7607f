"""A bucket of an S3-compatible store.

For why it uses no library see docs/decisions/0021-archives-in-a-store.md. One request writes one object, on the
condition that none with this name exists (If-None-Match, RFC 9110). So a writer needs only the permission
s3:PutObject: it can neither read nor replace what other nodes have written. A store that ignores the condition
replaces an object by an equal one.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kcover_ebpf.errors import StoreError
from kcover_ebpf.stores.sigv4 import Credentials, ObjectRequest, quoted, signed_headers
from kcover_ebpf.stores.store import StoreAddress
from kcover_ebpf.tunables.sending import REQUEST_S

_MOST_SECRET_BYTES = 8192
_CONDITION_FAILED, _NOT_FOUND = 412, 404


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A signature is valid for one host, so a redirect is not followed."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def credentials_in(folder: Path) -> Credentials:
    """Credentials in the files accessKey, secretKey and (optionally) sessionToken of a folder; raises `StoreError`."""
    return Credentials(
        _word(folder / "accessKey"),
        _word(folder / "secretKey"),
        _word(folder / "sessionToken") if (folder / "sessionToken").exists() else "",
    )


def _word(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_SECRET_BYTES).decode("ascii").strip()
    except OSError as error:
        raise StoreError(f"key {path.name} of the Secret: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or " " in text:
        raise StoreError(f"key {path.name} of the Secret is not one word of plain text")
    return text


def credentials_of(environment: Mapping[str, str]) -> Credentials:
    """Credentials in AWS_ACCESS_KEY_ID and related variables; raises `StoreError`."""
    access_key = environment.get("AWS_ACCESS_KEY_ID", "")
    secret_key = environment.get("AWS_SECRET_ACCESS_KEY", "")
    if not access_key or not secret_key:
        raise StoreError("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    return Credentials(access_key, secret_key, environment.get("AWS_SESSION_TOKEN", ""))


class S3Store:
    """A `PartStore` in a bucket; each call is one signed HTTP request."""

    def __init__(
        self,
        address: StoreAddress,
        credentials: Callable[[], Credentials],
        clock: Callable[[], float] = time.time,
        timeout_s: float = REQUEST_S,
    ) -> None:
        """`credentials`: called before each request, because they may be rotated; `clock`: unix seconds."""
        endpoint = address.endpoint or f"https://s3.{address.region}.amazonaws.com"
        self._endpoint, self._host = endpoint, urlsplit(endpoint).netloc
        self._address, self._credentials = address, credentials
        self._clock, self._timeout_s = clock, timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect)

    def put(self, key: str, content: bytes) -> bool:
        """Store a part; False if the key exists already, which stays unchanged. Raises `StoreError`."""
        headers = {"content-type": "application/gzip", "if-none-match": "*"}
        status, _ = self._ask("PUT", key, content, headers, 0)
        if status == _CONDITION_FAILED:
            return False
        # 409: another request for this object is not over yet, and may fail: only a retry shows whether it exists
        self._check(status)
        return True

    def get(self, key: str, most_bytes: int) -> bytes | None:
        """The content; None if the key does not exist. Raises `StoreError`, also if it exceeds `most_bytes`."""
        status, content = self._ask("GET", key, b"", {}, most_bytes + 1)
        if status == _NOT_FOUND:
            return None
        self._check(status)
        if len(content) > most_bytes:
            raise StoreError(f"{key} is larger than {most_bytes >> 20} MiB")
        return content

    def _check(self, status: int) -> None:
        if not 200 <= status < 300:
            raise StoreError(f"{self._host} answered {status}{_HINTS.get(status, '')}")

    def _ask(
        self, method: str, key: str, payload: bytes, headers: Mapping[str, str], most_bytes: int
    ) -> tuple[int, bytes]:
        address = self._address
        path = f"/{address.bucket}/{address.prefix}{key}"
        request = ObjectRequest(method, self._host, path, address.region, payload, headers)
        clock_text = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        signed = signed_headers(request, self._credentials(), clock_text)
        asked = urllib.request.Request(
            f"{self._endpoint}{quoted(path)}",
            payload if method == "PUT" else None,
            signed,
            method=method,
        )
        try:
            with self._opener.open(asked, timeout=self._timeout_s) as answer:
                content = answer.read(most_bytes) if most_bytes else b""
                if len(content) < most_bytes and answer.length:
                    # not an error to http.client, if it is asked for a number of bytes
                    raise http.client.IncompleteRead(content, answer.length)
                return answer.status, content
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, b""
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            text = getattr(reason, "strerror", None) or type(reason).__name__
            raise StoreError(f"{self._host} does not answer: {text}") from None


_HINTS = {
    301: ": the bucket is in another region",
    403: ": the credentials, their permission for this bucket, or the clock of this node is wrong",
    404: ": there is no such bucket",
}
