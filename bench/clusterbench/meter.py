"""What a scenario costs: requests that the API server served, and CPU time by program."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from kcover_ebpf.kube.client import ApiClient

_TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """Counts from when it is made."""

    def __init__(self, client: ApiClient) -> None:
        self._session = client
        self._requests, self._cpu_s = _requests(client), _cpu_s()

    def spent(self) -> dict[str, Any]:
        """Requests by verb, and seconds of CPU by program, since then."""
        requests = _requests(self._session)
        requests.subtract(self._requests)
        cpu_s = _cpu_s()
        return {
            "requests": {verb: count for verb, count in sorted(requests.items()) if count},
            "cpu_s": {name: round(cpu_s[name] - self._cpu_s[name], 2) for name in sorted(cpu_s)},
        }


def _requests(session_client: ApiClient) -> Counter[str]:
    from kubernetes import client

    with client.ApiClient(session_client.configuration()) as api:
        asked = api.param_serialize("GET", "/metrics", auth_settings=["BearerToken"])
        text = api.call_api(*asked).read().decode()
    served: Counter[str] = Counter()
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{"):
            verb = line.partition('verb="')[2].partition('"')[0]
            served[verb] += int(float(line.rpartition(" ")[2]))
    return served


def _cpu_s() -> Counter[str]:
    """Of this program and all that it started, by name."""
    found: Counter[str] = Counter()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(") ")
        except OSError:
            continue
        pid, fields = int(head.split(" ", 1)[0]), tail.split()
        if os.getpid() in (pid, int(fields[1])):
            name = "bench" if pid == os.getpid() else head.partition("(")[2]
            found[name] += (int(fields[11]) + int(fields[12])) / _TICKS  # type: ignore[assignment]
    return found
