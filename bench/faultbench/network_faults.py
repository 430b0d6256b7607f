"""Network faults inside the job's own namespaces; the host's network is not touched."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.faultbench.live import Live, RunFailed
from bench.faultbench.truth import first
from testbed.workloads import network

FLAP_S = 5.0
TABLE = "table inet faultbench {{\n{chains}\n}}\n"
CHAIN = "chain {name} {{ type filter hook {name} priority 0; {rule}; }};"


def space(live: Live, rank: int) -> str:
    """The network namespace of a rank; MPI's ranks share one."""
    return network.name(live.tag, 0 if live.run.framework == "mpi" else rank)


def run(*command: str, text: str = "") -> str:
    """Run a tool; raises RunFailed with what it said."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def drop(live: Live, rank: int, inward: str = "", outward: str = "") -> None:
    """Install rules for packets that come in to and go out of a rank's namespace."""
    rules = [("input", inward), ("output", outward)]
    chains = "\n".join(CHAIN.format(name=name, rule=rule) for name, rule in rules if rule)
    command = ("ip", "netns", "exec", space(live, rank), "nft", "-f", "-")
    run(*command, text=TABLE.format(chains=chains))


INWARD = f"iifname {network.DEVICE} drop"
OUTWARD = f"oifname {network.DEVICE} drop"


def drop_in(live: Live) -> None:
    """Nothing reaches the culprit any more; what it sends still goes out."""
    live.begin_fault()
    drop(live, live.run.culprit, inward=INWARD)


def drop_out(live: Live) -> None:
    """Nothing from the culprit reaches any other process."""
    live.begin_fault()
    drop(live, live.run.culprit, outward=OUTWARD)


def drop_both(live: Live) -> None:
    """The culprit is cut off silently."""
    live.begin_fault()
    drop(live, live.run.culprit, inward=INWARD, outward=OUTWARD)


def drop_edge(live: Live) -> None:
    """Only the culprit and the next rank cannot talk any more."""
    other = network.address((live.run.culprit + 1) % live.run.world)
    live.begin_fault()
    drop(live, live.run.culprit, f"ip saddr {other} drop", f"ip daddr {other} drop")


def drop_ports(live: Live) -> None:
    """Cut the culprit's own connections on a loopback that all ranks share."""
    ports = ",".join(map(str, sorted(local_ports(live.pid(live.run.culprit)))))
    live.begin_fault()
    rule = f"tcp sport {{ {ports} }} drop; tcp dport {{ {ports} }} drop"
    drop(live, live.run.culprit, inward=rule)


def local_ports(pid: int) -> set[int]:
    """The local TCP ports of a process's sockets, from /proc/PID/net."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes:
                ports.add(int(words[1].rsplit(":", 1)[1], 16))
    if not ports:
        raise RunFailed(f"process {pid} has no TCP connections")
    return ports


def cut_telemetry(live: Live) -> None:
    """What rank 0 sends of its loss and speed does not reach its collector any more."""
    begun = first(live.events(), "telemetry")
    if begun is None:
        raise RunFailed("the job has no telemetry")
    drop(live, 0, inward=f"tcp dport {begun['port']} drop")


def lose(live: Live, percent: int) -> None:
    """Lose this fraction of the packets to the culprit."""
    rule = f"iifname {network.DEVICE} numgen random mod 100 < {percent} drop"
    drop(live, live.run.culprit, inward=rule)


def loss_5(live: Live) -> None:
    """A bad cable that the training hardly feels: no fault, a phase."""
    live.begin_phase()
    lose(live, 5)
    live.sleep(live.run.scenario.phase_s)
    live.end_phase()


def loss_20(live: Live) -> None:
    """A cable so bad that steps take longer."""
    live.begin_fault()
    lose(live, 20)


def rate_1mbit(live: Live) -> None:
    """Limit what the culprit sends to 1 Mbit/s with a real queue."""
    live.begin_fault()
    bucket = ("rate", "1mbit", "burst", "16kb", "latency", "400ms")
    place = ("qdisc", "add", "dev", network.DEVICE, "root", "tbf")
    run("tc", "-n", space(live, live.run.culprit), *place, *bucket)


def flap_5(live: Live) -> None:
    """Take the culprit's link down for 5 s."""
    link = ("-n", space(live, live.run.culprit), "link", "set", network.DEVICE)
    live.begin_fault()
    run("ip", *link, "down")
    live.sleep(FLAP_S)
    run("ip", *link, "up")
    live.log.write("link_up")


def remove_link(live: Live) -> None:
    """Take the culprit's cable out for good."""
    live.begin_fault()
    port = f"{network.PORT}{live.run.culprit}"
    run("ip", "-n", live.tag + network.SWITCH, "link", "del", port)


def vanish(live: Live) -> None:
    """The culprit's link goes, then the culprit: its peers never see a FIN."""
    rank = live.run.culprit
    pids = [live.pid(rank), *live.workers(rank)]
    remove_link(live)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


BEGIN: dict[str, Callable[[Live], None]] = {
    "drop-in": drop_in,
    "drop-out": drop_out,
    "drop-both": drop_both,
    "drop-edge": drop_edge,
    "drop-ports": drop_ports,
    "loss-5": loss_5,
    "loss-20": loss_20,
    "rate-1mbit": rate_1mbit,
    "flap-5": flap_5,
    "remove-link": remove_link,
    "vanish": vanish,
}
