"""The schemas of the custom resources: a comma in a plain text of YAML's flow style would end it, and begin a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CRDS = sorted((Path(__file__).resolve().parents[3] / "charts/kcover-ebpf/crds").glob("*.yaml"))
KEYS = {
    "type", "description", "properties", "items", "required", "enum", "format", "default", "pattern", "nullable",
    "additionalProperties", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
    "maxProperties", "x-kubernetes-map-type", "x-kubernetes-validations", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string",
}  # fmt: skip
"""Of JSONSchemaProps (k8s.io/apiextensions-apiserver), as far as they are of use here."""


def unknown(schema: dict[str, Any], place: str) -> Iterator[str]:
    yield from (f"{place}: {key}" for key in schema if key not in KEYS)
    for name, inner in schema.get("properties", {}).items():
        yield from unknown(inner, f"{place}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from unknown(schema[name], f"{place}.{name}")


@pytest.mark.parametrize("file", CRDS, ids=lambda file: file.stem)
def test_crds__a_schema_has_no_key_that_the_api_server_refuses(file: Path) -> None:
    crd = yaml.safe_load(file.read_text())
    schemas = [version["schema"]["openAPIV3Schema"] for version in crd["spec"]["versions"]]
    assert schemas
    assert [key for schema in schemas for key in unknown(schema, "")] == []
