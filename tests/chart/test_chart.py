"""The chart with a real helm and a real API server: what it renders is accepted, and it leaves again."""

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.driver.control_plane import ControlPlane, User
from tests.chart.release import CHART, FULLNAME, RELEASE, Helm, Installed
from tools.release import chart

MATRIX = {
    "defaults": [],
    "unprivileged": ["agent.privileged=false"],
    "unprivileged, every family": [
        "agent.privileged=false", "agent.capabilities.hardware={SYSLOG,SYS_ADMIN}",
        "agent.seccompProfile.type=RuntimeDefault",
    ],
    "one replica, dry run": ["controller.replicas=1", "controller.dryRun=true"],
    "without admission": ["admission.validating=false", "admission.restartInPlace=false"],
    "a private registry": [
        "image.repository=registry.example/kcover-ebpf", "image.tag=9.9.9",
        "imagePullSecrets[0].name=pull", "image.pullPolicy=Always",
    ],
    "logs elsewhere, own rules": [
        "agent.containerLogs.folder=/data/pods", "agent.containerLogs.rules=[[rule]]\nname = \"a\"\n",
    ],
    "preflight": ["admission.preflight=true"],
    "bandwidth": ["admission.preflight=true", "admission.bandwidth=true"],
    "no logs": ["agent.containerLogs.enabled=false"],
    "notifications": [
        "controller.notifications.secretName=s", "controller.notifications.targets[0].name=oncall",
        "controller.notifications.targets[0].form=PagerDuty", "controller.notifications.targets[0].key=k",
        "controller.podAnnotations.a=b",
    ],
    "archives in a bucket": [
        "archiveStore.url=s3://incidents/prod", "archiveStore.endpoint=https://minio.example:9000",
        "archiveStore.secretName=s",
    ],
    "archives in a volume": ["archiveStore.claim=incidents"],
    "a condition of culprits": ["controller.culpritCondition=true"],
    "a flight recorder": ["admission.flightRecorder=true"],
    "by digest": ["image.digest=sha256:" + "0" * 64],
    "GPU nodes only": [
        "agent.nodeSelector.gpu=yes", "agent.tolerations[0].key=nvidia.com/gpu",
        "agent.tolerations[0].operator=Exists", "agent.priorityClassName=", "controller.priorityClassName=",
    ],
    "monitoring, network closed": [
        "podMonitor.labels.release=prometheus", "dashboards.enabled=false",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
    ],
    "long names, extras": [
        "fullnameOverride=" + "k" * 40, "agent.extraEnv[0].name=A", "agent.extraEnv[0].value=b",
        "controller.extraArgs={--verbose}", "agent.podLabels.team=ml",
        "controller.podAnnotations.a=b", "agent.updateStrategy.type=OnDelete",
        "agent.updateStrategy.rollingUpdate=null", "agent.catalog=[xid.63]\nsurvival = \"no\"\n",
    ],
}  # fmt: skip
REFUSED = {
    "agent.privilegd=true": "'privilegd' not allowed",
    "unknown=1": "'unknown' not allowed",
    "controller.notifications.targets[0].name=a": "form",
    "agent.privileged=maybe": "privileged",
    "controller.replicas=0": "replicas",
    "agent.containerLogs.folder=pods": "folder",
    "admission.preflight=maybe": "preflight",
    "admission.bandwidth=400": "bandwidth",
    "agent.capabilities.hardware={SYS_MODULE}": "hardware",
    "image.digest=latest": "digest",
    "archiveStore.url=http://minio": "url",
    "metrics.agentPort=80": "agentPort",
    "prometheusRule.runbookBase=https://x": "runbookBase",
}

OWN_SERVICE = "kubernetes"
"""The API server makes it, its endpoints and the range of its address some time after it is ready."""
OFFLINE = ("--kube-version=1.36.0",)
"""Without an API server helm assumes the release of Kubernetes that it was built with."""


def sets(values: list[str]) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def render(helm: Helm, values: list[str], *options: str) -> list[dict[str, Any]]:
    arguments = (*sets(values), "--namespace=matrix", "--validate", *options)
    text = helm("template", "kcover", str(CHART), *arguments)
    return [item for item in yaml.safe_load_all(text) if item]


@pytest.fixture(scope="module")
def matrix_namespace(plane: ControlPlane, installed: object) -> str:
    """An empty namespace; the CRDs come with `installed`."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "matrix"}}
    assert plane.admin().ask("POST", "/api/v1/namespaces", body).code in (201, 409)
    return "matrix"


def test_helm_lint_accepts_the_chart(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART), "--strict")


@pytest.mark.parametrize("name", MATRIX)
def test_the_api_server_accepts_what_is_rendered(
    helm: Helm, kubectl: Path, plane: ControlPlane, matrix_namespace: str, name: str
) -> None:
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": render(helm, MATRIX[name])})
    done = subprocess.run(
        [kubectl, f"--kubeconfig={plane.kubeconfig}", "create", "--dry-run=server",
         "--validate=strict", f"--namespace={matrix_namespace}", "--filename=-"],
        input=manifest, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Hidden fields, deprecated APIs, policies that cannot work: the API server warns.
    warnings = [line for line in done.stderr.splitlines() if "violate PodSecurity" not in line]
    assert warnings == []


@pytest.mark.parametrize("value", REFUSED)
def test_a_value_that_the_schema_does_not_know_is_refused(helm: Helm, value: str) -> None:
    done = helm.run("template", "kcover", str(CHART), *OFFLINE, "--set", value)
    assert done.returncode != 0
    assert REFUSED[value] in done.stderr


def test_the_shown_crds_are_one_stream_of_documents(helm: Helm) -> None:
    """The way to upgrade them is to pipe them into kubectl, and helm puts nothing between the files."""
    shown = yaml.safe_load_all(helm("show", "crds", str(CHART)))
    found = sorted(item["spec"]["names"]["kind"] for item in shown if item)
    assert found == ["FaultPolicy", "FaultReport", "Incident", "JobKind", "NodeHealth"]


def names(objects: list[dict[str, Any]]) -> set[str]:
    return {f"{object_['kind']}/{object_['metadata']['name']}" for object_ in objects}


def test_monitoring_is_there_where_the_api_is_or_when_forced(
    helm: Helm, matrix_namespace: str
) -> None:
    """The API server of the test has no Prometheus operator."""
    wanted = {f"PodMonitor/{FULLNAME}-agent", f"PrometheusRule/{FULLNAME}"}
    assert not wanted & names(render(helm, ["fullnameOverride=" + FULLNAME]))
    forced = [
        "podMonitor.enabled=true",
        "prometheusRule.enabled=true",
        "prometheusRule.runbookBase=",
    ]
    values = sets([*forced, "fullnameOverride=" + FULLNAME])
    text = helm("template", "kcover", str(CHART), *OFFLINE, *values)
    objects = [item for item in yaml.safe_load_all(text) if item]
    assert wanted <= names(objects)
    rule = next(object_ for object_ in objects if object_["kind"] == "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())


def test_the_page_of_the_controller_is_off_and_admits_no_pod(
    helm: Helm, matrix_namespace: str
) -> None:
    page = {f"Service/{FULLNAME}-page", f"Role/{FULLNAME}-page"}
    named = "fullnameOverride=" + FULLNAME
    assert not page & names(render(helm, [named]))
    objects = render(helm, [named, "controller.page.enabled=true"])
    assert page <= names(objects)
    policies = [object_ for object_ in objects if object_["kind"] == "NetworkPolicy"]
    ports = [rule["ports"] for policy in policies for rule in policy["spec"]["ingress"]]
    assert ports == [[{"port": "metrics"}]]
    (controller,) = (object_ for object_ in objects if object_["kind"] == "Deployment")
    container = controller["spec"]["template"]["spec"]["containers"][0]
    assert "--page=:9467" in container["args"]
    role = next(
        object_
        for object_ in objects
        if object_["kind"] == "Role" and object_["metadata"]["name"].endswith("-page")
    )
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": [f"{FULLNAME}-page:page"],
            "verbs": ["get"],
        }
    ]


def test_gpu_prices_reach_the_controller(helm: Helm, matrix_namespace: str) -> None:
    values = ["controller.gpuPrices.perHour.H100-80GB=2", "controller.gpuPrices.currency=EUR"]
    (controller,) = (object_ for object_ in render(helm, values) if object_["kind"] == "Deployment")
    arguments = controller["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--gpu-price=H100-80GB=2", "--currency=EUR"} <= set(arguments)


def test_runbooks_of_alerts_become_links(helm: Helm) -> None:
    values = [
        "prometheusRule.enabled=true",
        "prometheusRule.runbookBase=https://git.example/kcover/",
    ]
    text = helm("template", "kcover", str(CHART), *OFFLINE, *sets(values))
    assert "runbook_url: https://git.example/kcover/docs/runbooks/KcoverJobHung.md" in text


def security(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    pod = next(object_ for object_ in objects if object_["kind"] == kind)["spec"]["template"][
        "spec"
    ]
    context: dict[str, Any] = pod["containers"][0]["securityContext"]
    return context


def test_the_unprivileged_agent_has_the_named_capabilities_alone(
    helm: Helm, matrix_namespace: str
) -> None:
    context = security(render(helm, ["agent.privileged=false"]), "DaemonSet")
    assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
    base = ["BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "KILL"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": [*base, "SYSLOG"]}
    controller = security(render(helm, []), "Deployment")
    assert controller["capabilities"] == {"drop": ["ALL"]}


def inventory(root: User) -> set[tuple[str, str, str]]:
    """Every object there is: resource, namespace, name."""
    found = set()
    groups = root.ask("GET", "/apis").body["groups"]
    versions = [f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups]
    for base in ["/api/v1", *versions]:
        for resource in root.ask("GET", base).body["resources"]:
            # Events and leases come and go by themselves.
            if "list" not in resource["verbs"] or resource["name"] in ("events", "leases"):
                continue
            items = root.ask("GET", f"{base}/{resource['name']}").body.get("items") or []
            for metadata in (item["metadata"] for item in items):
                place = metadata.get("namespace", "")
                if metadata["name"] != OWN_SERVICE:
                    found.add((f"{base}/{resource['name']}", place, metadata["name"]))
    return found


def test_install_upgrade_uninstall_of_the_packed_chart_leave_the_crds_and_nothing_else(
    fresh_plane: ControlPlane, fresh_helm: Helm, tmp_path: Path
) -> None:
    packed = tmp_path / "kcover-ebpf.tgz"
    chart.pack(CHART, packed, 0)
    root = fresh_plane.admin()
    place = ("--namespace=kcover", "--create-namespace")
    before = inventory(root)
    fresh_helm("install", "kcover", str(packed), *place)
    installed = inventory(root)
    assert len(installed - before) > 20
    fresh_helm("upgrade", "kcover", str(packed), *place, "--set", "agent.privileged=false")
    history = json.loads(fresh_helm("history", "kcover", *place[:1], "--output=json"))
    assert [item["status"] for item in history] == ["superseded", "deployed"]
    # no node runs here that could run the Job of the hook (test_withdrawal, tests/cluster/test_withdrawal)
    fresh_helm("uninstall", "kcover", *place[:1], "--no-hooks")
    left = inventory(root) - before
    assert {name for _, _, name in left} == {
        "kcover",  # the namespace
        "faultpolicies.kcover.io",
        "faultreports.kcover.io",
        "incidents.kcover.io",
        "jobkinds.kcover.io",
        "nodehealths.kcover.io",
        "v1alpha1.kcover.io",  # the group that these make
    }


def test_two_releases_would_share_no_object(helm: Helm, matrix_namespace: str) -> None:
    def of(release: str, namespace: str) -> set[tuple[str, str, str]]:
        text = helm("template", release, str(CHART), f"--namespace={namespace}", "--validate")
        objects = [item for item in yaml.safe_load_all(text) if item]
        return {
            (object_["kind"], object_["metadata"].get("namespace", ""), object_["metadata"]["name"])
            for object_ in objects
        }

    sides = [of(*combination) for combination in itertools.product(("a", "b"), ("one", "two"))]
    assert all(not one & other for one, other in itertools.combinations(sides, 2))


def test_a_release_that_helm_installed_has_the_hook_and_a_second_one_is_refused(
    helm: Helm, installed: Installed, matrix_namespace: str
) -> None:
    place = f"--namespace={installed.namespace}"
    assert f"name: {FULLNAME}-withdraw" in helm("get", "hooks", RELEASE, place)
    tried = ("--dry-run=server", "--set=fullnameOverride=renamed")
    helm("upgrade", RELEASE, str(CHART), place, *tried)
    for release, namespace in ((RELEASE, matrix_namespace), ("other", installed.namespace)):
        done = helm.run("install", release, str(CHART), f"--namespace={namespace}", *tried)
        assert done.returncode != 0
        assert f"release {RELEASE} in namespace {installed.namespace} is installed" in done.stderr
