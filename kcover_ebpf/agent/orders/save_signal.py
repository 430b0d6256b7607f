"""Asks ranks to save: the one order that is carried out by a signal that a program handles.

The default action of such a signal ends a process, and a child of a rank may be without the handler of its parent. So
only a process that is a rank and takes the signal gets it.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Sequence

from kcover_ebpf.agent import containers
from kcover_ebpf.agent.containers import RunningContainer
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.order import Order, SaveSignal
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import ActionError
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import bounded, terminate

_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
_BLOCKED = re.compile(r"^SigBlk:\s*([0-9a-f]+)$", re.MULTILINE)
_CALLS = SyscallTable(os.uname().machine)
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
    chosen = {pid for pid in containers.processes(found) & frozenset(ranks) if takes(pid, number)}
    terminate.send(lambda: containers.processes(found), chosen, number)
    return Ack(order.id, order.verb, AckResult.DONE, len(chosen))


def takes(pid: int, number: signal.Signals) -> bool:
    """True if a signal reaches a process and cannot end it; False for one that is gone.

    It has a handler, or its threads block the signal and one of them may wait for it: by signalfd(2), or by sigwait(3),
    which unblocks it meanwhile (kernel: do_sigtimedwait). SigCgt and SigBlk of proc_pid_status(5).
    """
    if _has(bounded.read_text(f"/proc/{pid}/status"), _CAUGHT, number):
        return True
    try:
        with os.scandir(f"/proc/{pid}/task") as entries:
            tasks = [entry.path for entry in entries]
    except OSError:
        return False
    open_tasks = [
        task for task in tasks if not _has(bounded.read_text(f"{task}/status"), _BLOCKED, number)
    ]
    # what it waits for is in its memory; where all others block the signal, it is that
    return len(open_tasks) <= 1 and len(tasks) > len(open_tasks) and all(map(_waits, open_tasks))


def _waits(task: str) -> bool:
    call = bounded.read_text(f"{task}/syscall").partition(" ")[0].strip()
    return call.isdigit() and _CALLS.name(int(call)) == "rt_sigtimedwait"


def _has(status: str, mask: re.Pattern[str], number: signal.Signals) -> bool:
    found = mask.search(status)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
