"""The configuration files of the components, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.cluster import layout, pki
from testbed.cluster.layout import Bed, Node

# Who did what, without the contents: tests count the calls and prove what was refused. What the
# cluster does to keep itself alive would drown it.
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/readyz*", "/livez*", "/openapi*", "/version"]
- level: None
  resources: [{group: "", resources: [events]}, {group: events.k8s.io, resources: [events]}]
- level: None
  userGroups: ["system:nodes"]
- level: None
  users: ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"]
- level: Metadata
"""

COREFILE = """\
.:53 {{
  bind {address}
  errors
  health {address}:8080
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    ttl 2
  }}
}}
"""

# restrict_oom_score_adj: without CAP_SYS_RESOURCE (a container, some virtual machines) runc may not
# lower the score of a container's first process, and dies of it.
CONTAINERD = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
"""


# What kubeadm makes too: the permissions of the name server, and of the API server with the kubelets.
CLUSTER_OBJECTS = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
- apiGroups: [""]
  resources: [endpoints, services, pods, namespaces]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:coredns"}
"""


def write_control(bed: Bed) -> None:
    """The files of the control plane."""
    bed.etc.mkdir(parents=True, exist_ok=True)
    _write(bed.etc / "audit.yaml", AUDIT_POLICY)
    kubeconfig = pki.create_identity(bed, "coredns", "/CN=system:coredns")
    corefile = COREFILE.format(address=layout.CONTROL_ADDRESS, kubeconfig=kubeconfig)
    _write(bed.etc / "Corefile", corefile)
    # its own node is none of the cluster, and it waits half a minute for the addresses of one that is not there
    _write_proxy(bed, "control", bed.nodes(1)[0].name)


def write_node(node: Node) -> None:
    """The files of a node."""
    etc = node.bed.etc
    cni = etc / f"{node.name}-cni"
    cni.mkdir(parents=True, exist_ok=True)
    _write(cni / "10-testbed.conflist", json.dumps(cni_network(node), indent=1))
    text = CONTAINERD.format(pause=layout.PAUSE_IMAGE, cni=cni)
    _write(etc / f"{node.name}-containerd.toml", text)
    _write(etc / f"{node.name}-kubelet.yaml", json.dumps(kubelet(node), indent=1))
    _write_proxy(node.bed, node.name, node.name)


def cni_network(node: Node) -> dict[str, Any]:
    """Pods of a node on its own bridge; other nodes are reached by routes."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": node.pod_range}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True}
    plugins = [
        {**bridge, "ipam": addresses},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return {"cniVersion": "0.4.0", "name": "testbed", "plugins": plugins}


def kubelet(node: Node) -> dict[str, Any]:
    """KubeletConfiguration; what is not here has the default of a real cluster."""
    keys = node.bed.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(keys / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(keys / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(keys / f"{node.name}.key"),
        "address": "0.0.0.0",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,  # many machines still mount both v1 and v2
        "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": [layout.CONTROL_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "imageGCHighThresholdPercent": 100,  # images cannot be pulled again
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi"},
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "5s",  # job controllers wait for their certificates to appear in a volume
    }


def _write_proxy(bed: Bed, where: str, node: str) -> None:
    kubeconfig = pki.create_identity(bed, "kube-proxy", "/CN=system:kube-proxy")
    settings = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "mode": "iptables",
        "hostnameOverride": node,
        "clusterCIDR": layout.POD_RANGE,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {"maxPerCore": 0},  # global to the machine, and often read-only
    }
    _write(bed.etc / f"{where}-kube-proxy.yaml", json.dumps(settings, indent=1))


def _write(file: Path, text: str) -> None:
    """Leave a file alone that is as it should be: kube-proxy ends itself when its own changes."""
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
