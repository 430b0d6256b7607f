"""How an API server is reached, and who we are to it: by the official client, or as the pod that we run in."""

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
"""Set in every pod, with `KUBERNETES_SERVICE_PORT`."""
POOL = 64
"""Connections that are kept: each watch holds one, and one too many costs a TLS handshake for every request."""
SOCKET_OPTIONS = (
    # as urllib3 has it without others
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # a watch waits for minutes: the kernel asks whether the other end is there, and ends the read where it is not
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_AGAIN_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TRIES),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(UNANSWERED_S * 1000)),
)
_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_BYTES = 65536
"""A token of a ServiceAccount has about 1 kB."""


class Access(Protocol):
    """One API server, and our credentials."""

    @property
    def host(self) -> str:
        """Its URL, without a slash at the end."""
        ...

    def pool(self, url: str | None = None) -> Any:
        """urllib3's connections to it, or to another server of the cluster; made anew at each call."""
        ...

    def authorization(self) -> str:
        """The header that says who we are, as of now; empty with a client certificate."""
        ...

    def configuration(self) -> Any:
        """A `kubernetes.client.Configuration`, for what is no plain request."""
        ...


class OfficialAccess:
    """By a configuration of the official client, which reads kubeconfigs, keeps tokens fresh and makes TLS."""

    def __init__(self, configuration: Any) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = POOL
        configuration.socket_options = list(SOCKET_OPTIONS)
        self._configuration = configuration
        self.host = str(configuration.host).rstrip("/")

    def pool(self, url: str | None = None) -> Any:
        """Without the manager's search for the connections at each request."""
        from kubernetes.client.rest import RESTClientObject

        manager = RESTClientObject(self._configuration).pool_manager
        return manager.connection_from_url(url or self.host)

    def authorization(self) -> str:
        """The client calls its refresh hook for it."""
        setting = self._configuration.auth_settings().get("BearerToken")
        return str(setting["value"]) if setting else ""

    def configuration(self) -> Any:
        """The one it was made with."""
        return self._configuration


class PodAccess:
    """By the token and the certificate that each pod with a ServiceAccount has.

    The official client does the same, and costs some 20 MiB and 0.2 s (docs/decisions/0018). A proxy of the environment
    is not used: the API server is in the pod's own cluster.
    """

    def __init__(self, folder: Path = _FOLDER, environ: Mapping[str, str] | None = None) -> None:
        """Raises `UsageError` where the pod has no token."""
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
        """Verified by the cluster's own certificate."""
        import urllib3

        return urllib3.connection_from_url(
            url or self.host,
            maxsize=POOL,
            cert_reqs="CERT_REQUIRED",
            ca_certs=str(self._certificate),
            socket_options=list(SOCKET_OPTIONS),
        )

    def authorization(self) -> str:
        """The kubelet writes a new token before the old one ends."""
        with self._token.open("rb") as file:
            return f"Bearer {file.read(_TOKEN_BYTES).decode('ascii', 'replace').strip()}"

    def configuration(self) -> Any:
        """The official client's, which is imported for it."""
        from kubernetes import client, config

        configuration = client.Configuration()
        config.load_incluster_config(client_configuration=configuration)
        return configuration
