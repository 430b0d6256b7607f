"""What the drivers of network adapters think of their devices' health."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned

TOOL = "devlink"
_GET = "install iproute2 on the node: it has the tool devlink"


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each reporter of each device."""
    # only now: it takes 5 ms, and every round imports this file
    from kcover_ebpf.inspection import commands

    ran = commands.run_tool([TOOL, "-j", "health", "show"], options.root, _GET)
    if isinstance(ran, CheckFinding):
        yield ran
        return
    try:
        devices = json.loads(ran.output)["health"]
        reporters = [(name, dict(each)) for name, found in devices.items() for each in found]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield unknown(
            f"devlink ended with code {ran.exit_code}: {ran.first_line}",
            "run it as root, on a kernel with devlink (CONFIG_NET_DEVLINK)",
        )
        return
    for name, reporter in reporters:
        yield _of_one(name, reporter)
    if not reporters:
        yield unknown(
            "no driver here reports health by devlink", "right where no adapter is by mlx5 or alike"
        )


def _of_one(handle: str, reporter: dict[str, Any]) -> CheckFinding:
    name, device = f"{handle} {reporter.get('reporter')}", _address(handle)
    errors, recoveries = reporter.get("error", 0), reporter.get("recover", 0)
    if reporter.get("state") != "healthy":
        text = f"{name}: {reporter.get('state')}, {errors} error(s), {recoveries} recoveries"
        advice = f"devlink health diagnose {handle} reporter {reporter.get('reporter')}"
        return failed(text, advice, device)
    if errors:
        text = f"{name}: healthy again after {errors} error(s), {recoveries} recoveries"
        return warned(text, "see dmesg; update the firmware of the adapter", device)
    return passed(f"{name}: healthy", device)


def _address(handle: str) -> str:
    """Of "pci/0000:5d:00.0", or of its port "pci/0000:5d:00.0/1"; empty for a device of another bus."""
    bus, _, rest = handle.partition("/")
    return rest.partition("/")[0] if bus == "pci" else ""


CHECK = Check(
    "devlink",
    Cost.LIGHT,
    10.0,
    "each health reporter of a driver is healthy, and had no error since the driver was loaded",
    "`devlink -j health show`",
    find,
)
