"""What a Node object of the API says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_ready(api: Mapping[str, Any]) -> bool:
    """True if the kubelet of the node answers."""
    conditions = (api.get("status") or {}).get("conditions") or ()
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in conditions
    )
