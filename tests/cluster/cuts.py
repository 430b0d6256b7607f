"""Connections of pods that are cut."""

from __future__ import annotations

import subprocess
from typing import Any

from testbed.driver.kinds import process


def cut(pod: dict[str, Any], address: str) -> None:
    """Lose all packets between a pod and an address, in silence; it ends with the pod."""
    rules = (
        "table inet lost { chain in { type filter hook input priority 0; ip saddr %s drop; }\n"
        " chain out { type filter hook output priority 0; ip daddr %s drop; }\n}"
    )
    subprocess.run(
        ["nsenter", f"--target={process(pod)}", "--net", "nft", "-f", "-"],
        input=rules % (address, address),
        text=True,
        check=True,
    )
