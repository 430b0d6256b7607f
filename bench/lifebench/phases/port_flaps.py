"""The switch's port of the second host is down for 4 s."""

import os
import subprocess
import time

from stopping import pods, ranks

from bench.lifebench.life import event_log, phase_of


def in_network(space: str, *words: str) -> str:
    """What `ip` prints in a network namespace."""
    return subprocess.check_output(["nsenter", f"--net={space}", "ip", *words], text=True)


def port(pid: int) -> tuple[str, str]:
    """The network namespace of the second host's port, and the port; `pid`: a rank on that host."""
    if not pods():
        return f"/run/netns/{os.environ['LIFE_NETWORK']}-sw", "port1"
    # A pod's wire ends on its node, in the device whose number follows "@if" in the name of the pod's own.
    own = in_network(f"/proc/{pid}/ns/net", "-o", "link", "show", "eth0")
    number = own.split("@if", 1)[1].split(":", 1)[0]
    node = f"/run/netns/{pods()[1]['network']}"
    (device,) = (
        line.split(": ")[1].split("@")[0]
        for line in in_network(node, "-o", "link").splitlines()
        if line.split(": ")[0] == number
    )
    return node, device


space, device = port(ranks()[-1])
with phase_of(event_log(None)):
    for state, seconds in (("down", 4.0), ("up", 6.0)):
        in_network(space, "link", "set", device, state)
        time.sleep(seconds)
