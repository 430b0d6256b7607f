"""The values of the chart: each has a comment, a place in the schema, and a row in the chart's README."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import pages, values_doc

CHART = Path(__file__).resolve().parents[3] / "charts/kcover-ebpf"
TEXT = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = list(values_doc.documented(TEXT))
SECTIONS = {value.path.rpartition(".")[0] for value in VALUES} - {""}


def in_schema(schema: dict[str, Any], prefix: str = "") -> set[str]:
    """Paths of the properties of a schema that takes no others."""
    found = set()
    for name, part in schema.get("properties", {}).items():
        found.add(f"{prefix}{name}")
        if part.get("additionalProperties") is False:
            found |= in_schema(part, f"{prefix}{name}.")
    return found


def set_by_default(values: dict[str, Any], prefix: str = "") -> set[str]:
    """Paths of all values, to the depth at which they have comments."""
    found = set()
    for name, value in values.items():
        path = f"{prefix}{name}"
        found.add(path)
        if path in SECTIONS:
            found |= set_by_default(value, f"{path}.")
    return found


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.path)
def test_values__each_has_a_comment(value: values_doc.Value) -> None:
    assert value.text.endswith(".")


def test_values__the_comments_reach_every_value() -> None:
    assert {value.path for value in VALUES} == set_by_default(yaml.safe_load(TEXT))


def test_values__the_schema_knows_the_same() -> None:
    """What the chart refuses by its schema cannot be documented, and the reverse."""
    depth = {path for path in in_schema(SCHEMA) if path.rpartition(".")[0] in {*SECTIONS, ""}}
    helms_own = {"enabled", "global"}
    assert {value.path for value in VALUES} == depth - helms_own


def test_values__a_value_is_shown_with_its_default_and_its_comment() -> None:
    text = "# A thing.\n# See docs/logs.md.\na:\n  # Deep.\n  b: [1]\n# Plain.\nc: {d: 1}\n"
    found = list(values_doc.documented(text))
    assert [(value.path, value.default, value.text) for value in found] == [
        ("a", {"b": [1]}, "A thing. See docs/logs.md."),
        ("a.b", [1], "Deep."),
        ("c", {"d": 1}, "Plain."),
    ]


def test_chart__says_where_it_comes_from() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["home"] == pages.REPOSITORY
    icon = about["icon"].partition("/main/")[2]
    assert (CHART.parents[1] / icon).exists()
    crds = yaml.safe_load(about["annotations"]["artifacthub.io/crds"])
    assert {crd["name"] for crd in crds} == {
        f"{path.stem}.kcover.io" for path in (CHART / "crds").iterdir()
    }
