"""The tour without a cluster: its files exist, its command is ours, Prometheus takes its configuration."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcover_ebpf.cli import main

FOLDER = Path(__file__).resolve().parents[3] / "contrib/tour"
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def test_tour__compose_every_file_that_is_mounted_exists() -> None:
    sources = [
        volume.split(":")[0] for service in SERVICES.values() for volume in service["volumes"]
    ]
    ours = [source for source in sources if source.startswith("./")]
    assert len(ours) == 5
    assert [source for source in ours if not (FOLDER / source).is_file()] == []


def test_tour__compose_what_prometheus_scrapes_is_what_the_sensor_serves() -> None:
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    (address,) = job["static_configs"][0]["targets"]
    service, port = address.split(":")
    command = SERVICES[service]["command"]
    assert command[command.index("--metrics") + 1] == f"0.0.0.0:{port}"


def test_tour__compose_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_tour__compose_the_options_are_those_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    """It complains of the missing command only after it has taken every option."""
    command = SERVICES["training"]["command"]
    assert main(command[: command.index("--")]) == 2
    assert "nothing to watch" in capsys.readouterr().err


@pytest.mark.needs("promtool")
def test_tour__prometheus_takes_the_configuration() -> None:
    command = ["promtool", "check", "config", str(FOLDER / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tour__grafana_every_dashboard_has_a_name_of_its_own() -> None:
    folder = FOLDER.parents[1] / "charts/kcover-ebpf/files/dashboards"
    pages = [*folder.glob("*.json"), FOLDER / "grafana/host.json"]
    uids = [json.loads(page.read_text())["uid"] for page in pages]
    assert sorted(set(uids)) == sorted(uids)
    assert all(uid.startswith("kcover-") for uid in uids)
