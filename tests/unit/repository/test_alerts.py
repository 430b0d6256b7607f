"""Alerts, dashboards, runbooks and docs/metrics.md agree; promtool tests the alerts themselves."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "charts/kcover-ebpf/files/alerts.yaml"
DASHBOARDS = sorted((ROOT / "charts/kcover-ebpf/files/dashboards").glob("*.json"))
DASHBOARDS.append(ROOT / "contrib/tour/grafana/host.json")
RUNBOOKS = ROOT / "docs/runbooks"
METRIC = re.compile(r"\bkcover_[a-z_]+")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def documented() -> set[str]:
    return set(
        re.findall(r"^\| `(kcover_[a-z_]+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    )


def asked_for(expression: str) -> set[str]:
    return {SUFFIX.sub("", name) for name in METRIC.findall(expression)}


def expressions(dashboard: Path) -> list[str]:
    page = json.loads(dashboard.read_text())
    queries = [target["expr"] for panel in page["panels"] for target in panel["targets"]]
    return queries + [
        item["definition"] for item in page["templating"]["list"] if "definition" in item
    ]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize(
    "command", [("check", "rules", ALERTS), ("test", "rules", "alerts.test.yaml")]
)
def test_alerts__promtool_is_content(command: tuple[object, ...]) -> None:
    done = subprocess.run(
        ["promtool", *map(str, command)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts__each_alert_is_tested() -> None:
    tested = (Path(__file__).parent / "alerts.test.yaml").read_text()
    missing = [rule["alert"] for rule in rules() if f"runbooks/{rule['alert']}.md" not in tested]
    assert missing == []


def test_alerts__each_alert_has_its_runbook_and_each_runbook_its_alert() -> None:
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"
        assert rule["labels"]["severity"] in {"critical", "warning"}
    names = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert names == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alerts__an_alert_asks_only_for_documented_metrics(rule: dict[str, Any]) -> None:
    assert asked_for(rule["expr"]) <= documented()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_alerts__a_dashboard_asks_only_for_documented_metrics(dashboard: Path) -> None:
    queries = expressions(dashboard)
    assert queries
    assert set().union(*map(asked_for, queries)) <= documented()


def test_alerts__an_undocumented_metric_is_noticed() -> None:
    assert asked_for("rate(kcover_invented_total[5m])") - documented() == {"kcover_invented_total"}
