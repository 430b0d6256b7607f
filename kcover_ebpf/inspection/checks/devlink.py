"""Health of network adapters by their drivers' health reporters (devlink), read through netlink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.host import host_programs
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned

_HEALTHY = 0
"""DEVLINK_HEALTH_REPORTER_STATE_HEALTHY in include/uapi/linux/devlink.h."""
_NO_KERNEL = (
    "expected without an adapter that uses mlx5 or a similar driver; otherwise use a kernel with "
    "CONFIG_NET_DEVLINK"
)
_MAY = "set agent.privileged: true, or run kcover-ebpf inspect as root on the node itself"


@dataclass(frozen=True, slots=True)
class Reporter:
    """One health reporter of a driver."""

    handle: str
    """Name of its device, "pci/0000:5d:00.0", or of a port, "pci/0000:5d:00.0/1"."""
    name: str
    is_healthy: bool
    error_count: int
    """Errors since the driver was loaded, as are the recoveries."""
    recovery_count: int

    @property
    def device(self) -> str:
        """PCI address; empty for a device on another bus."""
        bus, _, rest = self.handle.partition("/")
        return rest.partition("/")[0] if bus == "pci" else ""


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each reporter of each device."""
    # imported here: it takes some 0.1 s, and every round imports this file
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        reporters = read(host_programs.other_network(options.root))
    except PermissionError as error:
        yield unknown(f"the host's network cannot be entered: {error.strerror}", _MAY)
        return
    except (NetlinkError, OSError) as error:
        yield unknown(f"devlink cannot be asked: {error}", _NO_KERNEL)
        return
    for reporter in reporters:
        yield _of_one(reporter)
    if not reporters:
        yield unknown("no driver here reports health by devlink", _NO_KERNEL)


def read(network: Path | None) -> list[Reporter]:
    """All reporters of a network namespace (None: ours).

    Raises OSError, and `NetlinkError` with the kernel's reason.
    """
    from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST
    from pyroute2.netlink.devlink import DEVLINK_NAMES, DevlinkSocket, devlinkcmd

    request = devlinkcmd()
    request["cmd"] = DEVLINK_NAMES["DEVLINK_CMD_HEALTH_REPORTER_GET"]
    with DevlinkSocket(netns=None if network is None else str(network)) as devlink:
        devlink.bind()
        flags = NLM_F_REQUEST | NLM_F_DUMP
        answers = devlink.nlm_request(request, msg_type=devlink.prid, msg_flags=flags)
        return [_reporter(answer) for answer in answers]


def _reporter(answer: Any) -> Reporter:
    """A reporter from a message whose attributes were already parsed."""
    handle = [answer.get_attr("DEVLINK_ATTR_BUS_NAME"), answer.get_attr("DEVLINK_ATTR_DEV_NAME")]
    port = answer.get_attr("DEVLINK_ATTR_PORT_INDEX")
    if port is not None:
        handle.append(str(port))
    found = answer.get_attr("DEVLINK_ATTR_HEALTH_REPORTER")
    return Reporter(
        "/".join(handle),
        found.get_attr("DEVLINK_ATTR_HEALTH_REPORTER_NAME"),
        found.get_attr("DEVLINK_ATTR_HEALTH_REPORTER_STATE") == _HEALTHY,
        found.get_attr("DEVLINK_ATTR_HEALTH_REPORTER_ERR_COUNT") or 0,
        found.get_attr("DEVLINK_ATTR_HEALTH_REPORTER_RECOVER_COUNT") or 0,
    )


def _of_one(reporter: Reporter) -> CheckFinding:
    name = f"{reporter.handle} {reporter.name}"
    counts = f"{reporter.error_count} error(s), {reporter.recovery_count} recoveries"
    if not reporter.is_healthy:
        advice = f"devlink health diagnose {reporter.handle} reporter {reporter.name}"
        return failed(f"{name}: error, {counts}", advice, reporter.device)
    if reporter.error_count:
        text = f"{name}: healthy again after {counts}"
        return warned(text, "see dmesg; update the firmware of the adapter", reporter.device)
    return passed(f"{name}: healthy", reporter.device)


CHECK = Check(
    "devlink",
    Cost.LIGHT,
    10.0,
    "each health reporter of a driver is healthy, and had no error since the driver was loaded",
    "devlink (DEVLINK_CMD_HEALTH_REPORTER_GET), in the host's network",
    find,
)
