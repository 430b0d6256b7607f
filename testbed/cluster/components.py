"""The parts that a test bed consists of: what is run, where, and how its health is asked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from testbed.cluster import layout, network, pki, processes
from testbed.cluster.layout import Bed
from testbed.cluster.probes import HttpProbe, PortProbe, SocketProbe, wait
from testbed.cluster.shell import Words
from testbed.cluster.state import State
from testbed.cluster.versions import Kubernetes

Probe = Callable[[], bool]
RESTART_S = 1.0
"""Between two starts of a component that ends."""


@dataclass(frozen=True, slots=True)
class Component:
    """One long-running process."""

    name: str
    cgroup: str
    command: Words
    healthy: Probe
    patience_s: float = 60.0
    """How long it may take from its start until it is healthy; generous, for a busy machine."""


def ensure(state: State, component: Component) -> None:
    """Start the component unless it runs, and wait until it is healthy.

    One that ends meanwhile is started again, as systemd does on a real node: a kubelet gives up if the runtime already
    accepts connections and does not answer yet.
    """
    log = state.bed.log / f"{component.name}.log"
    started_s = -math.inf

    def is_healthy() -> bool:
        nonlocal started_s
        process = state.processes.get(component.name)
        if process is None or not process.alive():
            if time.monotonic() - started_s < RESTART_S:
                return False
            started_s = time.monotonic()
            started = processes.start(log, component.cgroup, component.command)
            state.processes[component.name] = started
            state.save()
        return component.healthy()

    wait(component.name, is_healthy, component.patience_s, log)


def control_plane(bed: Bed, release: Kubernetes, api_port: int) -> list[Component]:
    """The parts that are there once, in the order of their start; `control_proxy` comes after the nodes."""
    return [
        etcd(bed),
        api_server(bed, release),
        *forwards(bed, api_port),
        controller_manager(bed, release),
        scheduler(bed, release),
        dns(bed),
    ]


def etcd(bed: Bed) -> Component:
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    command = [
        *network.entered(bed.control_netns),
        "etcd",
        "--log-level=warn",
        "--data-dir",
        bed.folder / "etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]
    probe = HttpProbe(bed.control_netns, f"{client}/health")
    return Component("etcd", bed.control_cgroup, command, probe)


def api_server(bed: Bed, release: Kubernetes) -> Component:
    """With TLS, RBAC, the node authorizer, bound tokens and an audit log, as on a real cluster."""
    keys = bed.pki
    flags = {
        "etcd-servers": "http://127.0.0.1:2379",
        "bind-address": "0.0.0.0",
        "advertise-address": layout.CONTROL_ADDRESS,
        "secure-port": layout.API_PORT,
        "client-ca-file": keys / "ca.crt",
        "tls-cert-file": keys / "apiserver.crt",
        "tls-private-key-file": keys / "apiserver.key",
        "service-account-key-file": keys / "service-account.pub",
        "service-account-signing-key-file": keys / "service-account.key",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-cluster-ip-range": layout.SERVICE_RANGE,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "kubelet-client-certificate": keys / "kubelet-client.crt",
        "kubelet-client-key": keys / "kubelet-client.key",
        "kubelet-certificate-authority": keys / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "requestheader-client-ca-file": keys / "front-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "proxy-client-cert-file": keys / "front-proxy.crt",
        "proxy-client-key-file": keys / "front-proxy.key",
        "runtime-config": release.apis,
        "feature-gates": release.gates,
        "audit-policy-file": bed.etc / "audit.yaml",
        "audit-log-path": bed.log / "audit.log",
        "audit-log-maxsize": 200,
        "audit-log-maxbackup": 1,
    }
    url = f"https://127.0.0.1:{layout.API_PORT}/readyz"
    return _control(bed, "kube-apiserver", flags, url)


def controller_manager(bed: Bed, release: Kubernetes) -> Component:
    identity = pki.create_identity(bed, "controller-manager", "/CN=system:kube-controller-manager")
    flags = {
        "kubeconfig": identity,
        "authentication-kubeconfig": identity,
        "authorization-kubeconfig": identity,
        "bind-address": "127.0.0.1",
        "service-account-private-key-file": bed.pki / "service-account.key",
        "root-ca-file": bed.pki / "ca.crt",
        "cluster-signing-cert-file": bed.pki / "ca.crt",
        "cluster-signing-key-file": bed.pki / "ca.key",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "allocate-node-cidrs": "false",
        "node-monitor-grace-period": "20s",
        "feature-gates": release.gates,
    }
    return _control(bed, "kube-controller-manager", flags, "https://127.0.0.1:10257/healthz")


def scheduler(bed: Bed, release: Kubernetes) -> Component:
    identity = pki.create_identity(bed, "scheduler", "/CN=system:kube-scheduler")
    flags = {
        "kubeconfig": identity,
        "authentication-kubeconfig": identity,
        "authorization-kubeconfig": identity,
        "bind-address": "127.0.0.1",
        "leader-elect": "false",
        "feature-gates": release.gates,
    }
    return _control(bed, "kube-scheduler", flags, "https://127.0.0.1:10259/healthz")


def dns(bed: Bed) -> Component:
    pki.create_identity(bed, "coredns", "/CN=system:coredns")
    url = f"http://{layout.CONTROL_ADDRESS}:8080/health"
    return _control(bed, "coredns", {"conf": bed.etc / "Corefile"}, url)


def control_proxy(bed: Bed) -> Component:
    """kube-proxy next to the API server, which calls webhooks behind services."""
    netns = bed.control_netns
    name = "control-kube-proxy"
    command = [*network.entered(netns), bed.bin / "kube-proxy", f"--config={bed.etc / name}.yaml"]
    probe = HttpProbe(netns, "http://127.0.0.1:10256/livez")
    return Component(name, bed.control_cgroup, command, probe)


def forwards(bed: Bed, api_port: int) -> list[Component]:
    """The API server on the host's loopback, through a Unix socket: no route leads inside."""
    cgroup, path = bed.control_cgroup, bed.api_socket
    inner = [
        *network.entered(bed.control_netns),
        "socat",
        f"UNIX-LISTEN:{path},fork,unlink-early,mode=600",
        f"TCP:127.0.0.1:{layout.API_PORT},nodelay",
    ]
    outer = [
        "socat",
        f"TCP-LISTEN:{api_port},bind=127.0.0.1,fork,reuseaddr,nodelay",
        f"UNIX-CONNECT:{path}",
    ]
    return [
        Component("forward-inside", cgroup, inner, SocketProbe(path)),
        Component("forward-host", cgroup, outer, PortProbe(api_port)),
    ]


def _control(bed: Bed, program: str, flags: Mapping[str, object], url: str) -> Component:
    netns = bed.control_netns
    arguments = [f"--{flag}={value}" for flag, value in flags.items() if value != ""]
    command = [*network.entered(netns), bed.bin / program, *arguments]
    return Component(program, bed.control_cgroup, command, HttpProbe(netns, url), 120.0)
