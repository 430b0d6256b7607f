"""Access to an API server and its credentials: by the official client, or by the token of our own pod."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from kcover_ebpf.errors import UsageError
from kcover_ebpf.tunables.kube import (
    KEEPALIVE_AGAIN_S,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_TRIES,
    UNANSWERED_S,
)

IN_POD = "KUBERNETES_SERVICE_HOST"
"""Environment variable set in every pod, with `KUBERNETES_SERVICE_PORT`."""
POOL = 64
"""Connections in the pool: each watch occupies one, and one connection too few costs a TLS handshake per request."""
SOCKET_OPTIONS = (
    # urllib3's default without our options
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # a watch waits for minutes: TCP keepalives detect a lost peer and end the read
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_AGAIN_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TRIES),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNANSWERED_S * 1000)),
)
FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder with the files of a pod's ServiceAccount."""
_TOKEN_BYTES = 65536
"""A token of a ServiceAccount has about 1 kB."""


class Access(Protocol):
    """Address of one API server, and our credentials."""

    @property
    def host(self) -> str:
        """URL of the server, without a trailing slash."""
        ...

    def pool(self, url: str | None = None) -> Any:
        """urllib3's connection pool to it, or to another server of the cluster; a new one for each call."""
        ...

    def authorization(self) -> str:
        """Current Authorization header; empty with a client certificate."""
        ...

    def configuration(self) -> Any:
        """A `kubernetes.client.Configuration`, for what is not a plain request (exec)."""
        ...


class OfficialAccess:
    """By a configuration of the official client, which reads kubeconfigs, refreshes tokens and does TLS."""

    def __init__(self, configuration: Any) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = POOL
        configuration.socket_options = list(SOCKET_OPTIONS)
        self._configuration = configuration
        self.host = str(configuration.host).rstrip("/")

    def pool(self, url: str | None = None) -> Any:
        """The host's own pool, which saves the manager's lookup at each request."""
        from kubernetes.client.rest import RESTClientObject

        manager = RESTClientObject(self._configuration).pool_manager
        return manager.connection_from_url(url or self.host)

    def authorization(self) -> str:
        """The header; the client first calls its refresh hook."""
        setting = self._configuration.auth_settings().get("BearerToken")
        return str(setting["value"]) if setting else ""

    def configuration(self) -> Any:
        """The configuration that was passed in."""
        return self._configuration


class PodAccess:
    """By the token and the certificate that each pod with a ServiceAccount has.

    The official client does the same, but costs some 20 MiB and 0.2 s (docs/decisions/0018). A proxy in the
    environment is ignored: the API server is in the pod's own cluster.
    """

    def __init__(self, folder: Path = FOLDER, environ: Mapping[str, str] | None = None) -> None:
        """Raises `UsageError` if the pod has no token."""
        environ = os.environ if environ is None else environ
        name, port = environ.get(IN_POD, ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
        self.host = f"https://[{name}]:{port}" if ":" in name else f"https://{name}:{port}"
        self._token, self._certificate = folder / "token", folder / "ca.crt"
        try:
            self.authorization()
            self._certificate.stat()
        except OSError as error:
            raise UsageError(
                f"cannot read {error.filename}: {error.strerror}; give the pod a ServiceAccount with "
                "automountServiceAccountToken: true"
            ) from error

    def pool(self, url: str | None = None) -> Any:
        """A pool that verifies with the cluster's own certificate."""
        import urllib3

        return urllib3.connection_from_url(
            url or self.host,
            maxsize=POOL,
            cert_reqs="CERT_REQUIRED",
            ca_certs=str(self._certificate),
            socket_options=list(SOCKET_OPTIONS),
        )

    def authorization(self) -> str:
        """The header; the token is reread each time, because the kubelet replaces it before it expires."""
        with self._token.open("rb") as file:
            return f"Bearer {file.read(_TOKEN_BYTES).decode('ascii', 'replace').strip()}"

    def configuration(self) -> Any:
        """A configuration of the official client, which is imported for it."""
        from kubernetes import client, config

        configuration = client.Configuration()
        config.load_incluster_config(client_configuration=configuration)
        return configuration
