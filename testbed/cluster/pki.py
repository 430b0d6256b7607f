"""Certificates and kubeconfig files. Every component has its own identity, as kubeadm does it.

The files are of no use outside: the authority is made for one test bed and dies with it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from testbed.cluster import layout, shell
from testbed.cluster.layout import Bed, Node

DAYS = "365"
INSIDE = f"https://{layout.CONTROL_ADDRESS}:{layout.API_PORT}"


def create_authority(bed: Bed) -> None:
    """The certificate authority, the key of service account tokens, the API server's identity."""
    if (bed.pki / "apiserver.crt").exists():
        return
    bed.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    _issue(bed, "ca", "/CN=testbed-ca", [], authority=True)
    _issue(bed, "front-ca", "/CN=testbed-front-proxy-ca", [], authority=True)
    key = bed.pki / "service-account.key"
    shell.text(
        "openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key
    )
    shell.text("openssl", "pkey", "-in", key, "-pubout", "-out", bed.pki / "service-account.pub")
    _issue(
        bed,
        "front-proxy",
        "/CN=front-proxy-client",
        ["extendedKeyUsage=clientAuth"],
        authority_name="front-ca",
    )
    _issue(
        bed,
        "kubelet-client",
        "/O=system:masters/CN=kube-apiserver-kubelet-client",
        ["extendedKeyUsage=clientAuth"],
    )
    names = [
        "DNS:localhost",
        "DNS:kubernetes",
        "DNS:kubernetes.default",
        "DNS:kubernetes.default.svc",
        "DNS:kubernetes.default.svc.cluster.local",
        "IP:127.0.0.1",
        f"IP:{layout.CONTROL_ADDRESS}",
        f"IP:{layout.API_SERVICE_ADDRESS}",
    ]
    _issue(
        bed,
        "apiserver",
        "/CN=kube-apiserver",
        ["extendedKeyUsage=serverAuth", "subjectAltName=" + ",".join(names)],
    )


def create_identity(bed: Bed, name: str, subject: str) -> Path:
    """A client certificate in a kubeconfig for use inside; returns the kubeconfig's path."""
    file = bed.etc / f"{name}.kubeconfig"
    if not file.exists():
        _issue(bed, name, subject, ["extendedKeyUsage=clientAuth"])
        write_kubeconfig(bed, file, name, INSIDE)
    return file


def create_node_identity(node: Node) -> Path:
    """The kubelet's certificate, which it also serves with; returns its kubeconfig's path."""
    file = node.bed.etc / f"{node.name}.kubeconfig"
    if not file.exists():
        subject = f"/O=system:nodes/CN=system:node:{node.name}"
        names = f"subjectAltName=DNS:{node.name},IP:{node.address},IP:127.0.0.1"
        _issue(node.bed, node.name, subject, ["extendedKeyUsage=clientAuth,serverAuth", names])
        write_kubeconfig(node.bed, file, node.name, INSIDE)
    return file


def create_admin(bed: Bed, api_port: int) -> None:
    """The kubeconfig of the person at the keyboard; reaches the API server from the host."""
    if not bed.kubeconfig.exists():
        _issue(bed, "admin", "/O=system:masters/CN=admin", ["extendedKeyUsage=clientAuth"])
        write_kubeconfig(bed, bed.kubeconfig, "admin", f"https://127.0.0.1:{api_port}")


def write_kubeconfig(bed: Bed, file: Path, name: str, server: str) -> None:
    """A kubeconfig that holds everything it needs; JSON is YAML too."""

    def encoded(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": encoded(bed.pki / "ca.crt")}
    user = {
        "client-certificate-data": encoded(bed.pki / f"{name}.crt"),
        "client-key-data": encoded(bed.pki / f"{name}.key"),
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": name}}],
        "current-context": "testbed",
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(json.dumps(content, indent=1))
    new.replace(file)


def _issue(
    bed: Bed,
    name: str,
    subject: str,
    extensions: list[str],
    authority: bool = False,
    authority_name: str = "ca",
) -> None:
    key, certificate = bed.pki / f"{name}.key", bed.pki / f"{name}.crt"
    command: list[str | Path] = ["openssl", "req", "-x509", "-new", "-nodes", "-days", DAYS]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", subject]
    command += ["-keyout", key, "-out", certificate]
    if authority:
        command += ["-addext", "keyUsage=critical,keyCertSign,digitalSignature"]
    else:
        signer = bed.pki / authority_name
        command += ["-CA", signer.with_suffix(".crt"), "-CAkey", signer.with_suffix(".key")]
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    for extension in extensions:
        command += ["-addext", extension]
    shell.text(*command)
