"""Asks ranks to save a checkpoint: the one order that is a signal handled by the program.

The default action of such a signal ends a process, and a child of a rank may lack the handler of its parent. So the
signal is sent only to a process that is a rank and handles it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from kcover_ebpf.agent import containers
from kcover_ebpf.agent.containers import RunningContainer
from kcover_ebpf.api.fault_report import Ack, AckResult
from kcover_ebpf.api.order import Order, SaveSignal
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.errors import ActionError
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.host import blocked_call, bounded, stack_words, terminate
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.tunables.host import READ_STUCK_S

_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)
_BLOCKED = re.compile(r"^SigBlk:\s*([0-9a-f]+)$", re.MULTILINE)
_CALLS = SyscallTable(os.uname().machine)
_SET_BYTES = 8
"""Bytes of a set of signals, one bit each (kernel: sigset_t)."""
_NUMBERS = {SaveSignal.USR1: signal.SIGUSR1, SaveSignal.USR2: signal.SIGUSR2}


def carry_out(
    order: Order,
    pods: Sequence[Pod],
    of_pod: Callable[[Pod], Sequence[RunningContainer]],
    ranks: Collection[int],
) -> Ack:
    """Send the signal; the ack counts the ranks that received it. Raises `ActionError` for an order without a signal.

    A rank whose memory cannot be read in time is skipped.
    """
    if order.signal is None:
        raise ActionError("the Save order has no signal")
    number = _NUMBERS[order.signal]
    found = [one for pod in pods if pod.uid not in order.spared for one in of_pod(pod)]
    chosen = _that_take(containers.processes(found) & frozenset(ranks), number)
    terminate.send(lambda: containers.processes(found), chosen, number)
    return Ack(order.id, order.verb, AckResult.DONE, len(chosen))


def _that_take(ranks: Collection[int], number: signal.Signals) -> set[int]:
    """Processes that the signal cannot end, as far as that is known within `READ_STUCK_S`."""
    readers: Readers[int, bool] = Readers("kcover-signals")
    try:
        for pid in ranks:
            readers.ask(pid, partial(takes, Pid(pid), number))
        return {pid for pid, taken in readers.take(ranks, READ_STUCK_S) if taken}
    finally:
        readers.close()


def takes(pid: Pid, number: signal.Signals) -> bool:
    """True if a signal reaches a process and cannot end it; False for one that is gone.

    It has a handler, or its threads block the signal and one of them may wait for it: by signalfd(2), or by sigwait(3),
    which unblocks what it waits for meanwhile, and that alone is why it is not blocked (kernel: do_sigtimedwait).
    SigCgt and SigBlk of proc_pid_status(5). Reads the memory of the process, which may block.
    """
    if _has(bounded.read_text(f"/proc/{pid}/status"), _CAUGHT, number):
        return True
    try:
        tids = [Tid(int(path.name)) for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    open_tids = [tid for tid in tids if not _blocks(pid, tid, number)]
    return len(tids) > len(open_tids) and all(_waits(pid, tid, number) for tid in open_tids)


def _blocks(pid: Pid, tid: Tid, number: signal.Signals) -> bool:
    return _has(bounded.read_text(f"/proc/{pid}/task/{tid}/status"), _BLOCKED, number)


def _waits(pid: Pid, tid: Tid, number: signal.Signals) -> bool:
    """True if a thread is in a sigwait for this signal."""
    call = blocked_call.read_call(pid, tid, _CALLS)
    if call is None or call.name != "rt_sigtimedwait":
        return False
    awaited = stack_words.read_memory(pid, call.args[0], _SET_BYTES)
    return bool(int.from_bytes(awaited, sys.byteorder) >> (number - 1) & 1)


def _has(status: str, mask: re.Pattern[str], number: signal.Signals) -> bool:
    found = mask.search(status)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
