"""Writes docs/metrics.md from what the programs serve, and docs/alerts.md from the alerts and their runbooks.

python tools/reference_doc.py           writes both
python tools/reference_doc.py --check   says which is not up to date, and exits 1
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from kcover_ebpf.agent.metrics import AgentMetrics
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.telemetry import ControllerTelemetry
from kcover_ebpf.notify.notifier import Notifier
from kcover_ebpf.output.metrics import MetricsSink, RunMetrics
from kcover_ebpf.stores.opened import FolderStore
from kcover_ebpf.stores.uploader import Uploader, UploadMetrics
from tools.pages import ROOT, keep

ALERTS = ROOT / "charts/kcover-ebpf/files/alerts.yaml"
RUNBOOKS = ROOT / "docs/runbooks"
MEANS = re.compile(r"\*\*Means\.\*\* (.+?)\.(?:\s|$)", re.DOTALL)
TABLE = "\n| metric | type | labels | meaning |\n|---|---|---|---|\n"

METRICS_HEAD = """# Metrics

<!-- Written by tools/reference_doc.py from the programs themselves: change those. -->

Names are a contract. Series with a closed list of labels exist from the start, at zero. Alerts and dashboards
use only names on this page; a test checks that.

Nothing here grows with the age of the cluster: series about a pod, rank or job are removed with it
(rank ages: at most 1,024), those about a device are bounded by the devices of the node;
`verdict`, `cause`, `phase`, `verb` and `family` are closed lists. Each program also
serves `process_*`: its own CPU, memory and descriptors.

## Labels to join on

| label | joins |
|---|---|
| `namespace`, `pod` | kube-state-metrics (`kube_pod_info`), dcgm-exporter with Kubernetes support on |
| `node` | `kube_node_info`; the scrape adds it to what an agent serves (the PodMonitor's relabelling) |
| `device` | PCI address; dcgm-exporter's `pci_bus_id` |
| `training_job` | the job; not named `job`, which is Prometheus's own |

## `kcover-ebpf agent`, `kcover-ebpf run --metrics ADDR:PORT`
"""
CONTROLLER_HEAD = """
## Controller

Counted by the leader; a standby replica serves `kcover_leader` 0 and no incident.
"""
UPLOADER_HEAD = """
## Uploader

Of `kcover-ebpf upload`, which `archiveStore` runs on each node ([incidents](incidents.md)).
"""
ALERTS_HEAD = """# Alerts

<!-- Written by tools/reference_doc.py from the chart's alerts.yaml and the runbooks: change those. -->

Defined in `charts/kcover-ebpf/files/alerts.yaml`, tested by `promtool test rules
tests/unit/repository/alerts.test.yaml`.

| alert | severity | after | when |
|---|---|---|---|
"""
ALERTS_END = """
`KcoverJobHung` has no `for`, because the verdict has already waited: it follows a silence
longer than any the job had while healthy. An incident that stays `Open` as "suspected" may end by itself, and is left
to the operator; one that is "inferred" says when the job is restarted (`status.actsAt`).
With a scrape and an evaluation every 5 s the alert fires within 10 s of the verdict.
"""


@dataclass(frozen=True)
class Metric:
    """One metric as it is exported; `name` includes the suffix that queries use."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def served(registry: CollectorRegistry) -> dict[str, Metric]:
    """Metric name -> metric, for all metrics of a program except those of its process."""
    # the registry shows labels only for series that exist
    collectors = list(registry._collector_to_names)
    families: list[Any] = []
    for collector in collectors:
        if isinstance(collector, MetricWrapperBase):
            (family,) = collector.describe()
            families.append((family, collector._labelnames))
        elif not isinstance(collector, ProcessCollector):
            families += [(family, family._labelnames) for family in collector.collect()]  # type: ignore[attr-defined]
    found = {}
    for family, labels in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = Metric(name, family.type, tuple(labels), family.documentation.rstrip("."))
    return found


def names(labels: tuple[str, ...]) -> str:
    """A list of labels for a cell of a table."""
    return ", ".join(f"`{label}`" for label in labels)


def rows(metrics: dict[str, Metric], beside: dict[str, Metric]) -> Iterator[str]:
    """Rows of a table; `beside`: the agent's metrics, if they have more labels."""
    for metric in metrics.values():
        also = (
            set(beside[metric.name].labels) - set(metric.labels) if metric.name in beside else set()
        )
        labels = names(metric.labels) + (
            f"; agent also {names(tuple(sorted(also)))}" if also else ""
        )
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |\n"


def metrics_page() -> str:
    """docs/metrics.md."""
    writer: Any = SimpleNamespace(event=print)
    sensor = served(MetricsSink(list, dict).registry)
    run = served(RunMetrics(list, dict).registry)
    agent = served(AgentMetrics(list, dict).registry)
    telemetry = ControllerTelemetry(ObjectCache(print), writer, lambda: 0.0)
    telemetry.registry.register(Notifier([], lambda *_: False))
    controller = served(telemetry.registry)
    uploads = UploadMetrics()
    uploads.follow(Uploader(ROOT, "", FolderStore(ROOT)))
    uploader = served(uploads.registry)
    parts = [METRICS_HEAD + TABLE, *rows(sensor, agent)]
    for title, of_program in (("`kcover-ebpf run` only", run), ("Agent only", agent)):
        own = {name: metric for name, metric in of_program.items() if name not in sensor}
        parts += [f"\n## {title}\n{TABLE}", *rows(own, {})]
    parts += [CONTROLLER_HEAD + TABLE, *rows(controller, {})]
    return "".join([*parts, UPLOADER_HEAD + TABLE, *rows(uploader, {})])


def when(alert: str) -> str:
    """First sentence of the runbook, which says when the alert fires."""
    found = MEANS.search((RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8"))
    assert found is not None, f"docs/runbooks/{alert}.md does not begin with what the alert means"
    return " ".join(found[1].split())


def alerts_page() -> str:
    """docs/alerts.md."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    table = [
        f"| [{name}](runbooks/{name}.md) | {rule['labels']['severity']} "
        f"| {rule.get('for', 'at once')} | {when(name)} |\n"
        for group in groups
        for rule in group["rules"]
        for name in [rule["alert"]]
    ]
    return ALERTS_HEAD + "".join(table) + ALERTS_END


def main(arguments: list[str]) -> int:
    pages = {ROOT / "docs/metrics.md": metrics_page(), ROOT / "docs/alerts.md": alerts_page()}
    return keep(pages, arguments, "tools/reference_doc.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
