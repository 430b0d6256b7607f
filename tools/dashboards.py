"""Writes the Grafana dashboards from the tables below.

Those of the chart are in charts/kcover-ebpf/files/dashboards, that of the tour without a cluster in contrib/tour.

python tools/dashboards.py           writes them
python tools/dashboards.py --check   says which are not up to date, and exits 1
"""

import json
import sys
from dataclasses import dataclass

from tools.pages import ROOT, keep

FOLDER = ROOT / "charts/kcover-ebpf/files/dashboards"
TOUR = ROOT / "contrib/tour/grafana"
WIDTH = 24
Json = dict[str, object]


@dataclass(frozen=True)
class Panel:
    """One graph; `kind` is a panel type of Grafana, `width` is in 24ths of the page."""

    title: str
    kind: str
    width: int
    height: int
    queries: tuple[tuple[str, str], ...]
    """(PromQL expression, legend) of each line."""
    unit: str = "short"
    text: str = ""


@dataclass(frozen=True)
class Dashboard:
    """One page; `variables` are (name, query of label values)."""

    name: str
    title: str
    variables: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]


INCIDENTS = "kcover_incident_info"
CLUSTER = Dashboard(
    "cluster",
    "kcover-ebpf / cluster",
    (),
    (
        Panel("Jobs with incidents", "stat", 4, 4, ((f'count({INCIDENTS}{{phase!~"Recovered|Observed"}}) or vector(0)', ""),)),
        Panel("Watched pods", "stat", 4, 4, (("sum(kcover_watched_pods)", ""),)),
        Panel("Agents responding", "stat", 4, 4, (('sum(up{job="kcover-agent"})', ""),)),
        Panel("Leaders", "stat", 4, 4, (("sum(kcover_leader)", ""),), text="1 is right."),
        Panel("Breaker", "stat", 4, 4, (("max by (breaker) (kcover_breaker_open)", "{{breaker}}"),), text="1: only observing."),
        Panel("Nodes cordoned or tainted", "stat", 4, 4, (("sum(kcover_nodes_kept_out)", ""),)),
        Panel("Nodes by health", "timeseries", 24, 6, (("sum by (result) (kcover_nodes_by_health)", "{{result}}"),), text="By the last inspection of each; unknown where none is reported any more."),
        Panel("Incidents", "table", 24, 8, ((INCIDENTS, ""),)),
        Panel("Incidents by phase", "timeseries", 12, 8, (("sum by (phase) (kcover_incidents)", "{{phase}}"),)),
        Panel("Verdicts of agents", "timeseries", 12, 8, (("sum by (verdict, cause) (increase(kcover_verdicts_total[$__rate_interval])) > 0", "{{verdict}} {{cause}}"),)),
        Panel(
            "From fault to verdict", "timeseries", 8, 8,
            tuple((f"histogram_quantile({q}, sum by (le) (rate(kcover_detection_seconds_bucket[1h])))", f"p{int(q * 100)}") for q in (0.5, 0.99)), "s",
        ),
        Panel(
            "From verdict to progress", "timeseries", 8, 8,
            tuple((f"histogram_quantile({q}, sum by (le, way) (rate(kcover_recovery_seconds_bucket[1h])))", f"{{{{way}}}} p{int(q * 100)}") for q in (0.5, 0.99)), "s",
        ),
        Panel("Time lost, by phase", "timeseries", 8, 8, (("sum by (phase) (increase(kcover_time_lost_seconds_total[1h]))", "{{phase}}"),), "s"),
        Panel("Effective training time, by namespace", "timeseries", 12, 8, (("avg by (namespace) (kcover_job_ettr_ratio)", "{{namespace}}"),), "percentunit"),
        Panel("GPU hours lost a day", "timeseries", 12, 8, (("sum by (product) (increase(kcover_gpu_hours_lost_total[1d]))", "{{product}}"),)),
        Panel("API errors", "timeseries", 12, 8, (("sum by (verb, resource) (rate(kcover_api_errors_total[$__rate_interval]))", "{{verb}} {{resource}}"),), "reqps"),
        Panel("Own memory, largest", "timeseries", 12, 8, (('max by (job) (process_resident_memory_bytes{job=~"kcover-.+"})', "{{job}}"),), "bytes"),
    ),
)  # fmt: skip
JOB = Dashboard(
    "job",
    "kcover-ebpf / job",
    (
        ("namespace", "label_values(kcover_rank_progress_age_seconds, namespace)"),
        ("training_job", 'label_values(kcover_rank_progress_age_seconds{namespace="$namespace"}, training_job)'),
    ),
    (
        Panel("Incident", "table", 24, 5, ((f'{INCIDENTS}{{namespace="$namespace",training_job="$training_job"}}', ""),)),
        Panel(
            "Time since each rank last made progress", "timeseries", 24, 9,
            (('max by (rank, pod) (kcover_rank_progress_age_seconds{namespace="$namespace",training_job="$training_job"})', "{{rank}} {{pod}}"),), "s",
            "A training rank stays near zero; waiting ranks rise together, and so does the one they wait for.",
        ),
        Panel(
            "Heat map of the ranks", "status-history", 24, 10,
            (('max by (rank) (kcover_rank_progress_age_seconds{namespace="$namespace",training_job="$training_job"})', "{{rank}}"),), "s",
            "One row a rank: green while it makes progress, red once it has made none for a minute. The row that turned first is the culprit's, or that of who waited for it.",
        ),
        Panel("Incidents", "timeseries", 24, 6, ((f'sum by (verdict, cause, phase) ({INCIDENTS}{{namespace="$namespace",training_job="$training_job"}})', "{{verdict}} {{cause}} {{phase}}"),)),
        Panel("Effective training time", "timeseries", 24, 7, (('kcover_job_ettr_ratio{namespace="$namespace",training_job="$training_job"}', "ratio"),), "percentunit"),
    ),
)  # fmt: skip
NODE = Dashboard(
    "node",
    "kcover-ebpf / node",
    (("node", 'label_values(up{job="kcover-agent"}, node)'),),
    (
        Panel("Watched pods", "stat", 6, 4, (('kcover_watched_pods{node="$node"}', ""),)),
        Panel("Reports not sent", "stat", 6, 4, (('kcover_reports_spooled{node="$node"}', ""),)),
        Panel("Agent CPU", "stat", 6, 4, (('rate(process_cpu_seconds_total{job="kcover-agent",node="$node"}[1m])', ""),), "percentunit"),
        Panel("Agent memory", "stat", 6, 4, (('process_resident_memory_bytes{job="kcover-agent",node="$node"}', ""),), "bytes"),
        Panel("Inspection", "table", 12, 7, (('kcover_inspection_result{node="$node"} == 1', ""),), text="The result of each check in the last inspection."),
        Panel("Clean inspections in a row", "timeseries", 12, 7, (('kcover_inspection_clean_rounds{node="$node"}', "clean"),)),
        Panel("Device faults", "table", 12, 7, (('kcover_device_fault{node="$node"} == 1', ""),)),
        Panel("Probes not attached", "table", 12, 7, (('kcover_probe_refused{node="$node"}', ""),), text="reason: the kernel lacks what it attaches to, the driver is not loaded, a library is missing, or it was refused."),
        Panel("GPU use", "timeseries", 12, 7, (('sum by (use) (kcover_gpu_use{node="$node"})', "{{use}}"),), text="GPUs by what they are used for; busy at low power: a kernel that waits, as in a hang."),
        Panel("GPU utilisation by pod", "timeseries", 12, 7, (('kcover_gpu_utilization_ratio{node="$node"} * on (node, UUID) group_right kcover_gpu_pod{node="$node"}', "{{gpu}} {{namespace}}/{{pod}}"),), "percentunit"),
        Panel("GPU power", "timeseries", 12, 7, (('kcover_gpu_power_watts{node="$node"}', "{{gpu}}"),), "watt"),
        Panel("GPU links", "timeseries", 12, 7, (('sum by (gpu, link) (rate(kcover_gpu_link_bytes_total{node="$node"}[$__rate_interval]))', "{{gpu}} {{link}}"),), "Bps"),
        Panel("Xids", "timeseries", 8, 7, (('sum by (device, xid) (increase(kcover_xid_total{node="$node"}[$__rate_interval]))', "{{device}} {{xid}}"),)),
        Panel("PCIe errors", "timeseries", 8, 7, (('sum by (device, error) (increase(kcover_pcie_aer_total{node="$node"}[$__rate_interval]))', "{{device}} {{error}}"),)),
        Panel("Ports gone down", "timeseries", 8, 7, (('sum by (device, port) (increase(kcover_port_down_total{node="$node"}[$__rate_interval]))', "{{device}} {{port}}"),)),
        Panel("Records lost, passes not judged", "timeseries", 12, 7, (
            ('sum by (family) (increase(kcover_records_lost_total{node="$node"}[$__rate_interval]))', "lost: {{family}}"),
            ('increase(kcover_blind_total{node="$node"}[$__rate_interval])', "blind"),
        )),
        Panel("Orders carried out", "timeseries", 12, 7, (('sum by (verb, result) (increase(kcover_orders_total{node="$node"}[$__rate_interval]))', "{{verb}} {{result}}"),)),
    ),
)  # fmt: skip
HOST = Dashboard(
    "host",
    "kcover-ebpf / one host",
    (),
    (
        Panel("Faults reported", "stat", 6, 4, (('sum(kcover_verdicts_total{verdict!="WORKING"}) or vector(0)', ""),)),
        Panel("Restarts", "stat", 6, 4, (('sum(kcover_actions_total{act="restart"}) or vector(0)', ""),)),
        Panel("Slowest detection", "stat", 6, 4, (("histogram_quantile(1, sum by (le) (kcover_detection_seconds_bucket))", ""),), "s"),
        Panel("Sensor CPU", "stat", 6, 4, (("rate(process_cpu_seconds_total[30s])", ""),), "percentunit"),
        Panel(
            "Time since each rank last made progress", "timeseries", 24, 9,
            (("max by (rank) (kcover_rank_progress_age_seconds)", "rank {{rank}}"),), "s",
            "A training rank stays near zero; waiting ranks rise together, and so does the one they wait for.",
        ),
        Panel("Verdicts", "table", 12, 7, (("kcover_verdicts_total > 0", ""),)),
        Panel("Sensor memory", "timeseries", 12, 7, (("process_resident_memory_bytes", "resident"),), "bytes"),
    ),
)  # fmt: skip
DASHBOARDS = (CLUSTER, JOB, NODE)
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(panel: Panel, number: int, x: int, y: int) -> Json:
    instant = panel.kind in {"stat", "table"}
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend or "__auto",
            "instant": instant,
            "range": not instant,
            "format": "table" if panel.kind == "table" else "time_series",
        }
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    hidden = {"Time": True, "Value": True, "__name__": True, "instance": True, "job": True}
    tidy = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, **_colours(panel)}, "overrides": []},
        "targets": targets,
        "transformations": tidy if panel.kind == "table" else [],
    }


def _colours(panel: Panel) -> Json:
    """Colours by how long a rank has made no progress, for panels that show it as a colour."""
    if panel.kind != "status-history":
        return {}
    ages_s = (("green", None), ("yellow", 5), ("orange", 20), ("red", 60))
    steps = [{"color": colour, "value": from_s} for colour, from_s in ages_s]
    return {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}


def _panels(panels: tuple[Panel, ...]) -> list[Json]:
    placed: list[Json] = []
    x = y = row_height = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > WIDTH:
            x, y, row_height = 0, y + row_height, 0
        placed.append(_panel(panel, number, x, y))
        x, row_height = x + panel.width, max(row_height, panel.height)
    return placed


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
    }


def render(dashboard: Dashboard) -> str:
    """The dashboard as JSON for Grafana's import."""
    source: Json = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    page: Json = {
        "uid": f"kcover-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["kcover-ebpf"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [source, *(_variable(*variable) for variable in dashboard.variables)]
        },
        "panels": _panels(dashboard.panels),
    }
    return json.dumps(page, indent=1) + "\n"


def main(arguments: list[str]) -> int:
    files = {FOLDER / f"{dashboard.name}.json": render(dashboard) for dashboard in DASHBOARDS}
    files[TOUR / "host.json"] = render(HOST)
    return keep(files, arguments, "tools/dashboards.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
