"""What doctor says about which source reports what."""

from dataclasses import replace

import pytest

from kcover_ebpf.devices.xid.event_sources import NONE, Sources, active
from kcover_ebpf.facts.devices import Rung

NOTHING = Sources(frozenset(), Rung.CONSOLE, False, False, False, False)


def reported(sources: Sources) -> dict[str, str]:
    return {other_active.family: other_active.rung for other_active in active(sources)}


@pytest.mark.parametrize(
    ("changes", "family", "words"),
    [
        ({"xid_rung": Rung.KPROBE, "driver": True}, "Xids", "kprobe nv_report_error"),
        ({"xid_rung": Rung.TRACEPOINT, "driver": True}, "Xids", "keeps the driver loaded"),
        ({"xid_rung": Rung.NVML, "driver": True}, "Xids", "NVML events"),
        ({"xid_rung": Rung.KMSG, "driver": True}, "Xids", "/dev/kmsg"),
        ({"xid_rung": Rung.KMSG}, "Xids", "the driver is not loaded"),
        ({"console": True, "log": True}, "driver lines", "printk:console, read in /dev/kmsg"),
        (
            {"console": True, "log": True, "probes": {"on_stored"}},
            "driver lines",
            "kprobe prb_final_commit, read in /dev/kmsg",
        ),
        ({"log": True}, "driver lines", "polled"),
        ({"console": True}, "driver lines", "not trusted"),
        ({}, "driver lines", NONE),
        ({"probes": {"on_open"}}, "GPU holders", "kprobes and /proc"),
        ({}, "GPU holders", "/proc"),
        ({}, "PCIe errors", NONE),
        ({"probes": {"on_page", "on_machine_check"}}, "memory errors", "failure_event, mce_record"),
        (
            {"probes": {"on_arm_processor", "on_vendor_section"}},
            "memory errors",
            "arm_event, non_s",
        ),
        ({}, "RDMA ports", "state and counters, polled"),
        ({"links": True}, "links", "netlink"),
    ],
)
def test_active__each_rung(changes, family, words):
    assert words in reported(replace(NOTHING, **changes))[family]
