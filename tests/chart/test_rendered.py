"""What helm renders without an API server: whether the programs can read it, and whether it may be applied as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

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
