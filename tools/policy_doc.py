"""Writes docs/policy.md from the schema of FaultPolicy and the table of job kinds.

python tools/policy_doc.py           writes it
python tools/policy_doc.py --check   says whether it is up to date, and exits 1 if not
"""

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tools.pages import ROOT, keep

CRD = ROOT / "charts/kcover-ebpf/crds/faultpolicies.yaml"
KINDS = ROOT / "kcover_ebpf/recovery/restart/methods.toml"
PAGE = ROOT / "docs/policy.md"
Schema = Mapping[str, Any]

HEAD = """# Fault policies

<!-- Written by tools/policy_doc.py from the schema and the table of job kinds: change those. -->

Without any `FaultPolicy` every pod of a known kind of job is watched, and a job is restarted when it is *armed*: the label
`kcover.io/cascading-recovery=true` is on most of its pods or on the job itself. A policy changes that for the pods of its namespace that it
selects; if several select the same pod, the first by name applies. The shortest useful one:

```yaml
apiVersion: kcover.io/v1alpha1
kind: FaultPolicy
metadata: {name: careful, namespace: ml}
spec:
  action: Shutdown
  approval: Manual
  restarts: {max: 1}
```

What a policy may ask for is limited by the operator (`controller.tenants` of the chart): a larger `restarts.max`, or a shorter `windowSeconds`
or `backoffSeconds`, is replaced by the limit, by default 10, 3600 and 10. `node` takes effect only in a policy in the controller's own namespace.
If a policy cannot be read (it is larger than 8 KiB, or written for another version), the pods that it selects are only observed; if its selector is unreadable, all pods of its namespace are.

The API server validates it and adds defaults: a key that is not on this page is rejected with `kubectl apply --validate=strict`, and
`kubectl explain faultpolicy.spec --recursive` shows the same as the table.

## Fields of `spec`

| field | values | default | meaning |
|---|---|---|---|
"""
MIDDLE = """
## Kinds of jobs

Kinds that can be restarted as a whole, and how; each was tested with its real controller. All of
them can be restarted *in place* where the cluster allows it (Kubernetes 1.36), with two exceptions,
for which the job is replaced instead: if the field in *may cost* is set and a pod's own restart
policy is not Never, the kind's controller counts or reacts to such restarts; and if it *deletes
ended pods*, those of the restart policy Never are gone before their kubelet starts them again.
Faults of other kinds are reported and never acted on.

| kind | group | replaced by | in place may cost | deletes ended pods |
|---|---|---|---|---|
"""
METHODS = {
    "suspend": "its own `{suspend}`",
    "delete": "deleting its pods",
    "leader": "deleting its leader pod",
    "command": "deleting its pods, or a Command where its policies give that a meaning",
}


def _values(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_values(schema['items'])}"
    if schema["type"] == "object":
        return "map of text"
    least = schema.get("minimum")
    return str(schema["type"]) + (f", {least} or more" if least is not None else "")


def fields(schema: Schema, path: str = "") -> Iterator[str]:
    """Rows of the table, one for each field with a value."""
    for name, child in schema["properties"].items():
        here = f"{path}{name}"
        if "properties" in child:
            yield from fields(child, f"{here}.")
            continue
        if child.get("items", {}).get("properties"):
            yield from fields(child["items"], f"{here}[].")
            continue
        default = f"`{json.dumps(child['default'])}`" if "default" in child else ""
        yield f"| `{here}` | {_values(child)} | {default} | {child.get('description', '')} |"


def kinds(table: Mapping[str, Any]) -> Iterator[str]:
    """Rows of the table of kinds."""
    for row in table["kind"]:
        method = METHODS[row["method"]].format(suspend=row.get("suspend"))
        cost = f"`{row['in_place_costs']}`" if "in_place_costs" in row else ""
        deletes = "yes" if row.get("deletes_ended") else "no"
        yield f"| {row['kind']} | `{row['group']}` | {method} | {cost} | {deletes} |"


def render() -> str:
    """The complete docs/policy.md."""
    crd = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    table = tomllib.loads(KINDS.read_text(encoding="utf-8"))
    return HEAD + "\n".join(fields(schema)) + "\n" + MIDDLE + "\n".join(kinds(table)) + "\n"


def main(arguments: list[str]) -> int:
    return keep({PAGE: render()}, arguments, "tools/policy_doc.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
