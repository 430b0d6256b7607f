"""What helm renders without an API server: whether the programs can read it, and whether it may be applied as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.trace.gang.agent_pods import LABELS
from tests.chart.release import CHART, RELEASE, Helm

LARGE = 12345678
"""A number that Go writes as 1.2345678e+07 if it comes from a file of values."""


class Render:
    """The chart as `helm template` renders it, with values from a file."""

    def __init__(self, helm: Helm, folder: Path) -> None:
        self._helm, self._file = helm, folder / "values.yaml"

    def __call__(self, values: dict[str, Any] | None = None, *options: str) -> list[dict[str, Any]]:
        self._file.write_text(json.dumps(values or {}))
        text = self._helm(
            "template", RELEASE, str(CHART), "--namespace=kcover", "--kube-version=1.36.0",
            f"--values={self._file}", *options,
        )  # fmt: skip
        return [item for item in yaml.safe_load_all(text) if item]


@pytest.fixture
def render(programs: dict[str, Path], tmp_path: Path) -> Render:
    return Render(Helm(programs["helm"], tmp_path / "no-kubeconfig"), tmp_path)


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Pod templates by the component that they run."""
    found = [item["spec"]["template"] for item in objects if "template" in item.get("spec", {})]
    return {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in found}


def arguments(objects: list[dict[str, Any]]) -> list[str]:
    containers = [part for pod in pods(objects).values() for part in pod["spec"]["containers"]]
    return [argument for container in containers for argument in container["args"]]


def unlimited(schema: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Places of whole numbers without an upper limit."""
    if schema.get("type") == "integer" and "maximum" not in schema:
        yield place
    for name, part in schema.get("properties", {}).items():
        yield from unlimited(part, (*place, name))


def nested(place: tuple[str, ...], value: object) -> dict[str, Any]:
    return {place[0]: nested(place[1:], value) if place[1:] else value}


SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("place", list(unlimited(SCHEMA)), ids=".".join)
def test_a_large_number_is_written_with_all_its_digits(
    render: Render, place: tuple[str, ...]
) -> None:
    values = {argument.partition("=")[2] for argument in arguments(render(nested(place, LARGE)))}
    assert values & {f"{LARGE}", f"{LARGE}s"}


STEP = {"step": "Reboot", "job": {"template": {"spec": {"containers": [{"name": "a"}]}}}}
TARGET = {"name": "oncall", "form": "Webhook", "urlKey": "a"}
FILES: dict[str, tuple[str, tuple[str, ...], object, object]] = {
    "repairs": (
        "controller", ("controller", "repair"),
        {"enabled": True, "steps": [STEP]}, {"enabled": True, "steps": [STEP], "atOnce": 2},
    ),
    "notifications": (
        "controller", ("controller", "notifications", "targets"), [TARGET], [{**TARGET, "urlKey": "b"}],
    ),
    "catalog": ("agent", ("agent", "catalog"), "[xid.63]\n", "[xid.64]\n"),
    "log-rules": ("agent", ("agent", "containerLogs", "rules"), "a = 1\n", "a = 2\n"),
    "plugins": ("agent", ("agent", "inspection", "plugins"), {"a": "#!a"}, {"a": "#!b"}),
}  # fmt: skip
"""ConfigMap -> component that mounts it, place of its content in the values, and two contents."""


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_replaces_the_pods_that_read_it_at_their_start(
    render: Render, name: str
) -> None:
    component, place, *contents = FILES[name]
    first, second = (pods(render(nested(place, content)))[component] for content in contents)
    assert any(
        volume.get("configMap", {}).get("name", "").endswith(f"-{name}")
        for volume in first["spec"]["volumes"]
    )
    assert first["metadata"]["annotations"] != second["metadata"]["annotations"]


def test_every_file_of_the_chart_is_in_the_table_above() -> None:
    templates = [*CHART.glob("templates/agent/*.yaml"), *CHART.glob("templates/controller/*.yaml")]
    assert {file.stem for file in templates if "kind: ConfigMap" in file.read_text()} == set(FILES)


def test_repairs_without_a_step_are_refused(render: Render) -> None:
    """The controller would end at its start."""
    with pytest.raises(AssertionError, match="steps"):
        render({"controller": {"repair": {"enabled": True}}})
    assert render({"controller": {"repair": {"enabled": False}}})


def test_no_manifest_undoes_what_the_controller_does_when_it_is_applied(render: Render) -> None:
    """To kubectl and Kustomize the Job of a hook is a Job like any other."""
    assert "withdraw" not in pods(render())
    hooked = [item for item in render({"controller": {"withdraw": True}}) if item["kind"] == "Job"]
    assert [item["metadata"]["annotations"]["helm.sh/hook"] for item in hooked] == ["pre-delete"]


@pytest.mark.parametrize("values", [{}, {"nameOverride": "k"}, {"fullnameOverride": "k"}])
def test_an_agent_has_the_labels_by_which_it_is_found(
    render: Render, values: dict[str, Any]
) -> None:
    assert pods(render(values))["agent"]["metadata"]["labels"].items() >= LABELS.items()


@pytest.mark.parametrize("privileged", [True, False])
def test_what_reads_folders_of_the_host_may_do_so_under_selinux(
    render: Render, privileged: bool
) -> None:
    """Its policy for containers (container-selinux) allows that to the type spc_t alone, which privileged ones have."""
    values = {"agent": {"privileged": privileged}, "archiveStore": {"claim": "incidents"}}
    contexts = {
        component: container["securityContext"]
        for component, pod in pods(render(values)).items()
        for container in pod["spec"]["containers"]
        if any("hostPath" in volume for volume in pod["spec"]["volumes"])
    }
    assert set(contexts) == {"agent", "uploader"}
    for context in contexts.values():
        selinux = {} if context.get("privileged") else {"level": "s0", "type": "spc_t"}
        assert context.get("seLinuxOptions", {}) == selinux


def test_values_that_a_parent_chart_hands_on_are_accepted(render: Render) -> None:
    """Helm hands the parent's values below the name of a dependency to it, with the condition of the dependency."""
    assert render({"enabled": True, "global": {"imageRegistry": "registry.example"}}) == render()
