#!/usr/bin/env python3
# kcover-ebpf: deadline=30 problem=warn
"""Pods of this node that keep GPUs and have run no kernel on them for days, by the Prometheus that reads our metrics.

`PROMETHEUS_URL`: such as http://prometheus.monitoring:9090. `IDLE_HOURS`: 48. `NODE_NAME`: the label `node` of the
series, as the chart's PodMonitor sets it; without it all nodes count. Needs no privileges, so it runs anywhere.
"""

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

PASS, PROBLEM, UNKNOWN = 0, 1, 2
_PATIENCE_S = 4.0
_ANSWER_BYTES = 1 << 20
_MOST = 8
"""Most pods named in the evidence."""
_WORKS = "working|busy_at_low_power|unknown"
"""Uses of a GPU (`kcover_gpu_use`) that count as work."""


def query(hours: int, node: str) -> str:
    """PromQL for pods that had GPUs `hours` ago and have done no work since."""
    where = f', node="{node}"' if node else ""
    works = (
        f'max by (namespace, pod) (kcover_gpu_use{{use=~"{_WORKS}"{where}}}'
        " * on (UUID) group_right kcover_gpu_pod)"
    )
    return f"max_over_time(({works})[{hours}h:5m]) == 0 and ({works} offset {hours}h)"


def examine(url: str, hours: str, node: str) -> tuple[int, str]:
    """Exit code and evidence for the pods of the node."""
    if not url.startswith(("http://", "https://")) or not hours.isdecimal() or not int(hours):
        return UNKNOWN, "set PROMETHEUS_URL to http://HOST:PORT, and IDLE_HOURS to a whole number"
    asked = f"{url.rstrip('/')}/api/v1/query?" + urllib.parse.urlencode(
        {"query": query(int(hours), node)}
    )
    try:
        with urllib.request.urlopen(asked, timeout=_PATIENCE_S) as answer:
            found = json.loads(answer.read(_ANSWER_BYTES))["data"]["result"]
        pods = sorted(f"{item['metric']['namespace']}/{item['metric']['pod']}" for item in found)
    except Exception as error:  # noqa: BLE001 - a crash would end with 1, which is a warning about pods
        return UNKNOWN, f"Prometheus has no answer: {type(error).__name__}: {error}"
    if not pods:
        return PASS, f"no pod has kept a GPU idle for {hours} hours"
    more = f" and {len(pods) - _MOST} more" if len(pods) > _MOST else ""
    return PROBLEM, f"idle for {hours} hours, and keep GPUs: {', '.join(pods[:_MOST])}{more}"


if __name__ == "__main__":
    code, evidence = examine(
        os.environ.get("PROMETHEUS_URL", ""),
        os.environ.get("IDLE_HOURS", "48"),
        os.environ.get("NODE_NAME", ""),
    )
    print(evidence)
    sys.exit(code)
