"""A real API server of the test's own: etcd and kube-apiserver on the loopback, up in seconds.

Permissions, admission and what a chart leaves behind are the API server's business alone, and
admission policies are cluster-wide: on the shared test bed they would meet other tests.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from kcover_ebpf.kube.client import json_patch
from testbed.ports import free_ports

UP_WITHIN_S = 240.0


@dataclass(frozen=True)
class Answer:
    """What the API server said; `body` is an object, or the Status that says why not."""

    code: int
    body: dict[str, Any]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class User:
    """Requests with one token, or with the administrator's certificate where `token` is None."""

    def __init__(self, plane: ControlPlane, token: str | None = None) -> None:
        folder = plane.folder
        self._pool = urllib3.PoolManager(
            ca_certs=str(folder / "ca.crt"),
            cert_file=None if token else str(folder / "admin.crt"),
            key_file=None if token else str(folder / "admin.key"),
        )
        self._url = plane.url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(
        self, verb: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Answer:
        """One request; `kind` is the media type of the body."""
        answer = self._pool.request(
            verb,
            self._url + path,
            body=None if body is None else json.dumps(body).encode(),
            headers={**self._headers, "Content-Type": kind},
            timeout=30,
            retries=False,
        )
        return Answer(answer.status, _object(answer.data))

    def apply(self, path: str, body: Mapping[str, Any], manager: str = "test") -> Answer:
        """Make it, or replace what `body` says of it, as the agent writes its reports (kube/client.py)."""
        query = f"?fieldManager={manager}&fieldValidation=Ignore"
        changed = self.ask("PATCH", path + query, json_patch(body), "application/json-patch+json")
        if changed.code != 404:
            return changed
        return self.ask("POST", path.rpartition("/")[0] + query, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A JSON merge patch."""
        return self.ask("PATCH", path, body, "application/merge-patch+json")


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace")}
    return found if isinstance(found, dict) else {"items": found}


@dataclass(frozen=True)
class ControlPlane:
    """A running API server; everything of it is in `folder`."""

    folder: Path
    url: str

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def admin(self) -> User:
        return User(self)

    def token(self, namespace: str, account: str, pod: Mapping[str, Any] | None = None) -> str:
        """A token of a service account, bound to `pod` (and so to its node) as the kubelet's are."""
        spec: dict[str, Any] = {"audiences": [], "expirationSeconds": 3600}
        if pod is not None:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.admin().ask("POST", path, {"spec": spec})
        assert answer.code == 201, answer.message
        return str(answer.body["status"]["token"])

    def kubeconfig_of(self, name: str, token: str) -> Path:
        """A kubeconfig of a user with a token."""
        path = self.folder / f"{name}.kubeconfig"
        _write_kubeconfig(self, path, {"token": token})
        return path

    def audited(self) -> list[dict[str, Any]]:
        """What the service accounts of the audited namespace asked for so far."""
        whole = (self.folder / "audit.log").read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]


@contextmanager
def running(folder: Path, apiserver: Path, audited: str | None = None) -> Iterator[ControlPlane]:
    """Start one in `folder`; stopped, with its etcd, at the end.

    `audited`: the namespace whose service accounts are to be written down.
    """
    _make_pki(folder)
    first = free_ports(3)
    ports = [*range(first, first + 3)]
    plane = ControlPlane(folder, f"https://127.0.0.1:{ports[2]}")
    commands = [_etcd(ports), _apiserver(apiserver, ports) + _audit(folder, audited)]
    processes = []
    try:
        for command in commands:
            with open(folder / f"{Path(command[0]).name}.log", "wb") as log:
                processes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
        _wait_until_ready(plane)
        certificate = {f"client-{end}": str(folder / f"admin.{file}") for end, file in _ADMIN}
        _write_kubeconfig(plane, plane.kubeconfig, certificate)
        yield plane
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def _wait_until_ready(plane: ControlPlane) -> None:
    deadline = time.monotonic() + UP_WITHIN_S
    while True:
        try:
            if plane.admin().ask("GET", "/readyz").code == 200:
                return
        except urllib3.exceptions.HTTPError:
            pass
        if time.monotonic() > deadline:
            end = (plane.folder / "kube-apiserver.log").read_text(errors="replace")[-2000:]
            raise AssertionError(f"no API server within {UP_WITHIN_S:.0f} s: {end}")
        time.sleep(0.2)


def _etcd(ports: list[int]) -> list[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in ports[:2])
    return [
        "etcd", "--data-dir=etcd", f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        "--log-level=error",
    ]  # fmt: skip


def _apiserver(program: Path, ports: list[int]) -> list[str]:
    return [
        str(program), f"--etcd-servers=http://127.0.0.1:{ports[0]}", "--bind-address=127.0.0.1",
        f"--secure-port={ports[2]}", "--client-ca-file=ca.crt", "--tls-cert-file=server.crt",
        "--tls-private-key-file=server.key", "--service-account-key-file=sa.pub",
        "--service-account-signing-key-file=sa.key", "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC",
        "--endpoint-reconciler-type=none", "--cert-dir=.",
        # Off by default, and on in OpenShift.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    ]  # fmt: skip


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _make_pki(folder: Path) -> None:
    new = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    _openssl(folder, "req", "-x509", *new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt")
    _openssl(folder, "genrsa", "-out", "sa.key", "2048")
    _openssl(folder, "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    usage = "extendedKeyUsage=clientAuth,serverAuth\nsubjectAltName=IP:127.0.0.1\n"
    (folder / "extensions").write_text(usage)
    for name, subject in (("server", "/CN=server"), ("admin", "/O=system:masters/CN=admin")):
        key, request, certificate = (f"{name}.{end}" for end in ("key", "csr", "crt"))
        _openssl(folder, "req", *new[:3], "-subj", subject, "-keyout", key, "-out", request)
        _openssl(
            folder, "x509", "-req", "-in", request, "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-out", certificate, "-extfile", "extensions",
        )  # fmt: skip


def _audit(folder: Path, namespace: str | None) -> list[str]:
    if namespace is None:
        return []
    group = f"system:serviceaccounts:{namespace}"
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "userGroups": [group]}, {"level": "None"}],
    }
    (folder / "audit.yaml").write_text(json.dumps(policy))
    return ["--audit-policy-file=audit.yaml", "--audit-log-path=audit.log"]


_ADMIN = (("certificate", "crt"), ("key", "key"))


def _write_kubeconfig(plane: ControlPlane, path: Path, user: Mapping[str, str]) -> None:
    folder = plane.folder
    cluster = {"server": plane.url, "certificate-authority": str(folder / "ca.crt")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(json.dumps(config))
