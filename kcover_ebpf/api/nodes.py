"""What a Node object of the API says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_ready(api: Mapping[str, Any]) -> bool:
    """True if the kubelet of the node answers."""
    conditions = (api.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
