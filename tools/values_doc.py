"""Writes the README of the chart: how to install it, and each value with the comment above it in values.yaml.

python tools/values_doc.py           writes charts/kcover-ebpf/README.md
python tools/values_doc.py --check   says whether it is up to date, and exits 1 if not
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tools.pages import REPOSITORY, ROOT, keep

CHART = ROOT / "charts/kcover-ebpf"
PAGE = CHART / "README.md"
_HEAD = """\
# kcover-ebpf

<!-- Written by tools/values_doc.py from values.yaml. -->

{description}.

An agent on each node watches training pods from outside by eBPF. The controller combines what the
agents report into one verdict for each job, names the rank at fault, and, for jobs that ask for it,
restarts the whole job in place or by replacing its pods.

## Install

Needs Kubernetes 1.30 or newer (1.36 to restart jobs in place), nodes with Linux 5.10 or newer and
type information (BTF), and a namespace in which privileged pods may run.

```sh
kubectl create namespace kcover
kubectl label namespace kcover pod-security.kubernetes.io/enforce=privileged
helm install kcover-ebpf oci://ghcr.io/kcover-io/charts/kcover-ebpf \\
  --version {version} --namespace kcover --wait
```

Until the first release, `make release` makes the chart. Give Helm the file then:
`kcover-ebpf-{version}.tgz`. A job is restarted only if it is armed:

```sh
kubectl -n ml label pytorchjob llm kcover.io/cascading-recovery=true
```

To start carefully, add `--set controller.dryRun=true`.

## Upgrade and removal

Helm installs CRDs and never changes them. Apply them before an upgrade:

```sh
helm show crds kcover-ebpf-{version}.tgz |
  kubectl apply --server-side --force-conflicts -f -
```

`helm uninstall kcover-ebpf -n kcover` uncordons what the controller cordoned, resumes jobs whose
restart is under way, and keeps the CRDs, and with them incidents and policies.
[Install]({repository}/blob/main/docs/install.md) has the rest.

## Values

"""


@dataclass(frozen=True)
class Value:
    """One value: `path` with dots, `default` as in values.yaml, `text` of its comment."""

    path: str
    default: Any
    text: str


def documented(text: str) -> Iterator[Value]:
    """The values that a user can set, and the sections above them, in the order of the file.

    A section is a mapping whose keys have comments. The comment of a key is the block of `#` lines that ends
    directly above it, with the same indentation.
    """
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    yield from _values(root, yaml.safe_load(text), text.splitlines(), "")


def _values(
    node: yaml.MappingNode, loaded: dict[str, Any], lines: list[str], prefix: str
) -> Iterator[Value]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        comment = _comment(lines, key.start_mark.line, key.start_mark.column)
        default = loaded[key.value]
        yield Value(path, default, comment)
        if (
            isinstance(value, yaml.MappingNode)
            and not value.flow_style
            and _is_section(value, lines)
        ):
            yield from _values(value, default, lines, f"{path}.")


def _is_section(node: yaml.MappingNode, lines: list[str]) -> bool:
    first = node.value[0][0].start_mark
    return bool(_comment(lines, first.line, first.column))


def _comment(lines: list[str], line: int, column: int) -> str:
    mark = " " * column + "# "
    found: list[str] = []
    while line > 0 and lines[line - 1].startswith(mark):
        line -= 1
        found.insert(0, lines[line][len(mark) :])
    return " ".join(found)


def page() -> str:
    """The complete README of the chart."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    head = _HEAD.format(
        description=about["description"], version=about["version"], repository=REPOSITORY
    )
    values = list(documented((CHART / "values.yaml").read_text()))
    names = {value.path for value in values}
    rows = ["| value | default | description |", "|---|---|---|"]
    for value in values:
        is_section = any(name.startswith(f"{value.path}.") for name in names)
        default = "" if is_section else f"`{json.dumps(value.default)}`"
        name = f"**`{value.path}`**" if is_section else f"`{value.path}`"
        rows.append(f"| {name} | {_cell(default)} | {_cell(_linked(value.text))} |")
    return head + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _linked(text: str) -> str:
    return re.sub(r"\bdocs/([\w-]+)(\.md)?", rf"[docs/\1]({REPOSITORY}/blob/main/docs/\1\2)", text)


def main(arguments: list[str]) -> int:
    """Write or compare; the exit code."""
    return keep({PAGE: page()}, arguments, "tools/values_doc.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
