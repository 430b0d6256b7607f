"""One connection to an API server: requests by path, answers as plain objects, errors by kind.

The official client reads kubeconfigs, refreshes tokens and does TLS. Its models, which are most of its size and
know no custom resource, are not used. A pod whose memory matters does without it (`kube.access`).
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from kcover_ebpf import __version__
from kcover_ebpf.errors import ApiError, Conflict, NotFound, TooLarge, Unreachable, UsageError
from kcover_ebpf.kube.access import FOLDER, IN_POD, Access, OfficialAccess, PodAccess
from kcover_ebpf.kube.api_errors import refusal, said, unreachable
from kcover_ebpf.kube.kubelet import Kubelet
from kcover_ebpf.tunables.kube import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, STREAM_SILENT_S, TOKEN_S

MOST_PAGE_BYTES = 4 * 1024 * 1024
"""The most bytes of a page or of one event: more than any object (etcd takes 1.5 MiB). Decoded, it may take ten
times that.
"""

Object = dict[str, Any]

_IDENTITY = frozenset({"apiVersion", "kind", "metadata"})
_OWN_METADATA = frozenset({"labels", "annotations", "ownerReferences"})

_LOADING = threading.Lock()
"""The official client writes the certificates of a kubeconfig to files, and names a file to other threads before it has
written it (`_create_temp_file_with_content`)."""


class ApiClient:
    """Requests to one API server. Thread-safe: urllib3's pool is."""

    def __init__(self, access: Access) -> None:
        """`connect` creates instances."""
        self._access, self._pool = access, access.pool()
        self._prefix = urlsplit(access.host).path
        self._timeout_s = REQUEST_TIMEOUT_S
        self._header: dict[str, str] = {}
        self._known_until_s = 0.0

    def hurried(self, timeout_s: float) -> ApiClient:
        """The same connection, with requests that fail after `timeout_s` without an answer."""
        client = copy.copy(self)
        client._timeout_s = timeout_s
        return client

    def kubelet(self, address: str) -> Kubelet:
        """Client of a node's kubelet, with the same credentials; `address`: HOST or HOST:PORT."""
        return Kubelet(self._access, address)

    @property
    def host(self) -> str:
        """URL of the server, for messages."""
        return self._access.host

    def configuration(self) -> Any:
        """Configuration of the official client, for what is not a plain request."""
        return self._access.configuration()

    def get(self, path: str) -> Object:
        """Read one object; raises `ApiError`."""
        return self._json("GET", path)

    def list(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """One page of a collection, as the server sends it: `metadata`, `items`.

        With a `limit` in `query` the call may raise `TooLarge`; repeat it with a smaller limit.
        """
        most_bytes = MOST_PAGE_BYTES if query and "limit" in query else None
        return self._json("GET", path, query, most_bytes=most_bytes)

    def create(self, path: str, body: Object) -> Object:
        """Create an object in a collection; `Conflict` if one with that name exists."""
        return self._json("POST", path, None, body)

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object; with its resourceVersion in `body`, `Conflict` if it changed."""
        return self._json("PUT", path, None, body)

    def merge_patch(
        self, path: str, body: Object, query: Mapping[str, str] | None = None
    ) -> Object:
        """Change fields; with metadata.resourceVersion or uid in `body`, `Conflict` if they differ."""
        return self._json("PATCH", path, query, body, "application/merge-patch+json")

    def strategic_patch(self, path: str, body: Object) -> Object:
        """Change a built-in object, whose lists (such as conditions) are merged by their keys."""
        return self._json("PATCH", path, None, body, "application/strategic-merge-patch+json")

    def apply(self, path: str, body: Object, manager: str) -> Object:
        """Create the object at `path`, or replace the fields in `body` if it exists; other metadata stays.

        The server drops a field that its definition of the resource lacks. A server-side apply with such a field is
        refused as a whole (500), so programs newer than the definitions could not write at all.
        """
        query = {"fieldManager": manager, "fieldValidation": "Ignore"}
        changes = json_patch(body)
        collection = path.rpartition("/")[0]
        with contextlib.suppress(NotFound):
            return self._json("PATCH", path, query, changes, "application/json-patch+json")
        with contextlib.suppress(Conflict):
            return self._json("POST", collection, query, body)
        # another client has created it meanwhile
        return self._json("PATCH", path, query, changes, "application/json-patch+json")

    def delete(
        self,
        path: str,
        uid: str | None = None,
        grace_s: int | None = None,
        propagation: str | None = None,
    ) -> Object:
        """Delete one object; with `uid`, `Conflict` if another object has that name."""
        body = _delete_options(grace_s, propagation)
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        return self._json("DELETE", path, None, body)

    def delete_collection(self, path: str, label_selector: str) -> Object:
        """Delete all objects with these labels; an empty selector is refused, because it would match everything."""
        if not label_selector:
            raise ValueError("a label selector is needed")
        query = {"labelSelector": label_selector}
        return self._json("DELETE", path, query, _delete_options(None, None))

    def stream(self, path: str, query: Mapping[str, str], timeout_s: int) -> Iterator[Object]:
        """Events of a watch, until the server ends it after `timeout_s`; close the iterator to end it early."""
        asked = {**query, "watch": "1", "timeoutSeconds": str(timeout_s)}
        response = self._send("GET", path, asked, None, "", STREAM_SILENT_S)
        try:
            yield from _lines(response)
        finally:
            response.close()
            with contextlib.suppress(Exception):
                response.release_conn()

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | Sequence[Object] | None = None,
        kind: str = "application/json",
        most_bytes: int | None = None,
    ) -> Object:
        response = self._send(method, path, query, body, kind, self._timeout_s)
        try:
            found = json.loads(_read(response, most_bytes))
        except ValueError as error:
            raise Unreachable(f"{method} {path}: the answer is not JSON") from error
        except ApiError:
            raise
        except Exception as error:
            raise unreachable(method, path, error) from error
        finally:
            response.release_conn()
        if not isinstance(found, dict):
            raise Unreachable(f"{method} {path}: the answer is not an object")
        return found

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | Sequence[Object] | None,
        kind: str,
        timeout_s: float,
    ) -> Any:
        import urllib3

        url = f"{self._prefix}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": f"kcover-ebpf/{__version__}"}
        if body is not None:
            headers["Content-Type"] = kind
        try:
            headers.update(self.authorization())
            response = self._pool.urlopen(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                preload_content=False,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, timeout_s), read=timeout_s),
            )
        except Exception as error:
            raise unreachable(method, path, error) from error
        if response.status >= 300:  # no redirect is followed
            raise refusal(method, path, response)
        return response

    def authorization(self) -> Mapping[str, str]:
        """Authorization header; empty with a client certificate."""
        now_s = time.monotonic()
        if now_s >= self._known_until_s:
            # a token of a ServiceAccount lives for an hour
            word = self._access.authorization()
            self._header = {"Authorization": word} if word else {}
            self._known_until_s = now_s + TOKEN_S
        return self._header


def connect(
    kubeconfig: str | None = None, context: str | None = None, *, is_small: bool = False
) -> ApiClient:
    """A session by a kubeconfig, or by our own pod's token; raises `UsageError` if there is neither, or no client.

    Nothing is sent yet. `kubeconfig` None: KUBECONFIG, else the pod's own token, else ~/.kube/config. `is_small`:
    with the pod's own token, the official client is not imported.
    """
    named = kubeconfig or os.environ.get("KUBECONFIG")
    is_pod = _is_pod(named, context)
    if is_small and is_pod:
        return ApiClient(PodAccess())
    client, config = _modules()
    configuration = client.Configuration()
    try:
        if is_pod:
            config.load_incluster_config(client_configuration=configuration)
        else:
            path = named or str(Path.home() / ".kube" / "config")
            if named is not None and not any(Path(part).is_file() for part in path.split(":")):
                raise UsageError(f"no kubeconfig {path}; name one with --kubeconfig")
            with _LOADING:
                config.load_kube_config(path, context, configuration, persist_config=False)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"cannot use the {'kubeconfig ' + named if named else 'Kubernetes configuration'}: "
            f"{said(error).rstrip('.')}; give a valid one with --kubeconfig"
        ) from error
    return ApiClient(OfficialAccess(configuration))


def _is_pod(named: str | None, context: str | None) -> bool:
    """Whether our own pod's token is used. `named`: the kubeconfig that was named, by option or environment."""
    return named is None and context is None and IN_POD in os.environ


def namespace_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Namespace of a kubeconfig's context, or that of our own pod, as `connect` chooses; "default" if it has none."""
    named = kubeconfig or os.environ.get("KUBECONFIG")
    if _is_pod(named, context):
        try:
            return (FOLDER / "namespace").read_text(encoding="utf-8").strip() or "default"
        except OSError:
            return "default"
    _, config = _modules()
    loading = config.kube_config
    path = named or loading.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        # not `list_kube_config_contexts`, which fails if the kubeconfig has no current context, whatever was chosen
        kept = loading.KubeConfigMerger(path).config
        chosen = loading.KubeConfigLoader(
            kept, active_context=context, config_base_path=None
        ).current_context
    except (config.ConfigException, OSError):
        return "default"
    return str(chosen["context"].get("namespace") or "default")


def _modules() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ModuleNotFoundError as error:
        raise UsageError(
            "this needs the Kubernetes client: pip install 'kcover-ebpf[kube]'"
        ) from error
    return client, config


def json_patch(body: Mapping[str, Any]) -> list[Object]:
    """JSON patch that sets the fields in `body`: each top-level part is replaced as a whole."""
    metadata = body["metadata"]
    written = [(f"metadata/{key}", metadata[key]) for key in metadata if key in _OWN_METADATA]
    written += [(key, value) for key, value in body.items() if key not in _IDENTITY]
    return [{"op": "add", "path": f"/{name}", "value": value} for name, value in written]


def _delete_options(grace_s: int | None, propagation: str | None) -> Object:
    body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if grace_s is not None:
        body["gracePeriodSeconds"] = grace_s
    if propagation is not None:
        body["propagationPolicy"] = propagation
    return body


def _read(response: Any, most_bytes: int | None) -> bytes:
    if most_bytes is None:
        return bytes(response.read())
    raw = bytearray()
    for chunk in response.stream(65536, decode_content=True):
        raw += chunk
        if len(raw) > most_bytes:
            response.close()  # the rest is not read
            raise TooLarge(f"a page of more than {most_bytes >> 20} MiB")
    return bytes(raw)


def _lines(response: Any) -> Iterator[Object]:
    rest = b""
    try:
        for chunk in response.stream(65536, decode_content=True):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if line.strip():
                    found = json.loads(line)
                    if isinstance(found, dict):
                        yield found
            if len(rest) > MOST_PAGE_BYTES:
                raise Unreachable(f"watch: an event of more than {MOST_PAGE_BYTES >> 20} MiB")
    except ValueError as error:
        raise Unreachable("watch: the answer is not JSON") from error
    except ApiError:
        raise
    except Exception as error:
        raise unreachable("watch", "", error) from error


def segment(text: str) -> str:
    """The text escaped as one path segment: it cannot lead to another path."""
    if set(text) <= {"."}:
        return text.replace(".", "%2E")
    return quote(text, safe="")
