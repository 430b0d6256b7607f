"""With the Prometheus operator's own definitions in the cluster its objects come by themselves, and are valid."""

import subprocess
from pathlib import Path

import yaml

from testbed.cluster import build
from testbed.cluster.versions import Program
from testbed.driver.control_plane import ControlPlane
from tests.chart.release import CHART, Helm

OPERATOR = Program(
    "prometheus-operator",
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)
WANTED = ("podmonitors", "prometheusrules")


def kubectl_of(kubectl: Path, plane: ControlPlane, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [kubectl, f"--kubeconfig={plane.kubeconfig}", *arguments],
        input=stdin, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_operator_would_take_the_monitors_and_the_rules(
    fresh_plane: ControlPlane, fresh_helm: Helm, kubectl: Path
) -> None:
    crds = build.module_folder(OPERATOR) / "example/prometheus-operator-crd"
    for other_text in WANTED:
        path = crds / f"monitoring.coreos.com_{other_text}.yaml"
        kubectl_of(kubectl, fresh_plane, "create", f"--filename={path}")
        crd = f"crd/{other_text}.monitoring.coreos.com"
        kubectl_of(kubectl, fresh_plane, "wait", crd, "--for=condition=Established")
    text = fresh_helm("template", "kcover", str(CHART), "--namespace=default", "--validate")
    objects = [item for item in yaml.safe_load_all(text) if item]
    mine = [object_ for object_ in objects if object_["apiVersion"] == "monitoring.coreos.com/v1"]
    assert [item["kind"] for item in mine] == ["PodMonitor", "PodMonitor", "PrometheusRule"]
    strict = ("create", "--dry-run=server", "--validate=strict", "--filename=-")
    kubectl_of(kubectl, fresh_plane, *strict, stdin=yaml.safe_dump_all(mine))
