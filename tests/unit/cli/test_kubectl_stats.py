"""`kubectl kcover stats`: what incidents cost, and since when they are counted."""

from __future__ import annotations

import json
import time

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.node_health import HEALTHS
from tests.unit.cli.fake_cluster import GROUP, Plugin


def test_kubectl_stats__statistics_say_what_incidents_cost(plugin: Plugin) -> None:
    plugin.cluster.put("default", "llm-a")
    code, out, _ = plugin("stats", "--since", "99999h")
    assert code == 0
    assert out.startswith("1 incidents in 4166d 15h: 1 interruptions, 0 restarts, 2.6s lost")
    assert "lost: detect 2.5s, until decided 0.1s, shut down 0.0s" in out
    assert ["n7", "1", "4166d", "15h", "never", "recovered", "2.6s"] in map(
        str.split, out.splitlines()
    )
    code, out, _ = plugin("stats", "--since", "99999h", "-o", "json")
    assert json.loads(out)["causes"][0]["name"] == "stopped"


def test_kubectl_stats__mean_times_count_from_when_the_cluster_was_first_observed(
    plugin: Plugin,
) -> None:
    plugin.cluster.put("default", "one")
    seen_s = time.time() - 5 * 60
    raw = plugin.cluster.objects[f"{GROUP}/namespaces/default/incidents/one"]
    raw["metadata"]["creationTimestamp"] = rfc3339.to_text(seen_s)
    node = {"metadata": {"name": "n7", "creationTimestamp": rfc3339.to_text(seen_s - 3600)}}
    plugin.cluster.objects[HEALTHS] = {"items": [node]}
    _, out, _ = plugin("stats", "--since", "30d")
    assert out.startswith("1 incidents in 1h 05m")
    assert ["n7", "1", "1h", "05m"] in [line.split()[:4] for line in out.splitlines()]
    # what is older than the window is as if it had begun with it
    assert plugin("stats", "--since", "30m")[1].startswith("1 incidents in 30m")


def test_kubectl_stats__statistics_of_nothing_are_one_line(plugin: Plugin) -> None:
    assert plugin("stats")[1].splitlines() == [
        "0 incidents in 7d 00h: 0 interruptions, 0 restarts, 0.0s lost"
    ]
