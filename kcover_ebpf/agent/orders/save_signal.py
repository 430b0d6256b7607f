"""Asks ranks to save: the one order that is carried out by a signal that a program handles.

The default action of such a signal ends a process, and a child of a rank may be without the handler of its parent. So
only a process that is a rank and catches the signal gets it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Sequence

from kcover_ebpf.agent import containers
from kcover_ebpf.agent.containers import RunningContainer
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.order import Order, SaveSignal
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import ActionError
from kcover_ebpf.host import bounded, terminate

_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
_NUMBERS = {SaveSignal.USR1: signal.SIGUSR1, SaveSignal.USR2: signal.SIGUSR2}


def carry_out(
    order: Order,
    pods: Sequence[Pod],
    of_pod: Callable[[Pod], Sequence[RunningContainer]],
    ranks: Collection[int],
) -> Ack:
    """Send the signal; the answer counts the ranks that got it. Raises `ActionError` for an order without a signal."""
    if order.signal is None:
        raise ActionError("the order to save names no signal")
    number = _NUMBERS[order.signal]
    found = [one for pod in pods if pod.uid not in order.spared for one in of_pod(pod)]
    chosen = {pid for pid in containers.processes(found) & frozenset(ranks) if catches(pid, number)}
    terminate.send(lambda: containers.processes(found), chosen, number)
    return Ack(order.id, order.verb, AckResult.DONE, len(chosen))


def catches(pid: int, number: signal.Signals) -> bool:
    """True if a process has a handler for a signal (SigCgt, proc_pid_status(5)); False for one that is gone."""
    found = _CAUGHT.search(bounded.read_text(f"/proc/{pid}/status"))
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
