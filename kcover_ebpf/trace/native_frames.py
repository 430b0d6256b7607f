"""A separate process that reads native and kernel stacks: `python -m kcover_ebpf.trace.native_frames`.

Separate, because the files it reads come from the job: a damaged one may crash the symbolizer, a huge one may take
too long, and a page that is not in memory may block it. Reads lines "PID TID" and answers each with one JSON line.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence

from kcover_ebpf.host import capabilities, stack_frames
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.trace.symbols import NoSymbolizer, Symbols

_MOST_FRAMES = 24
# calls of the interpreter's evaluation loop, which the Python frames describe better
_INTERPRETER = re.compile(
    r"_PyEval_|PyEval_|_PyFunction_|_PyObject_|PyObject_|method_vectorcall|cfunction_|PyVectorcall_"
    r"|_PyVectorcall|PyRun_|Py_RunMain|Py_BytesMain|vectorcall_|slot_tp_|run_mod|run_eval|builtin_exec"
    r"|pymain_|\(python3[.0-9]*\)$|^python3[.0-9]*\+0x|\(libpython3[^()]*\)$"
)


def main() -> int:
    """Answer all lines of the input, which must end first.

    Process by process, because the symbolizer keeps a descriptor of each library of a process open: some 300 for torch.
    """
    threads = [(Pid(int(pid)), Tid(int(tid))) for pid, tid in (line.split() for line in sys.stdin)]
    stacks = {(pid, tid): stack_frames.kernel_frames(pid, tid) for pid, tid in threads}
    # from here on files of the job are parsed; only the kernel's stacks needed this capability
    capabilities.renounce(Capability.SYS_ADMIN)
    for pid in dict.fromkeys(pid for pid, _ in threads):
        tids = [tid for other_pid, tid in threads if other_pid == pid]
        for tid, native, blind in _read(pid, tids):
            kernel = stacks[pid, tid]
            answer = {"pid": pid, "tid": tid, "native": native, "kernel": kernel, "blind": blind}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    return 0


def _read(pid: Pid, tids: Sequence[Tid]) -> Iterator[tuple[Tid, list[str], str]]:
    """(thread, native frames, what could not be read) of the threads of one process."""
    machine = os.uname().machine
    try:
        symbols = Symbols(pid)
    except NoSymbolizer as error:
        yield from ((tid, [], str(error)) for tid in tids)
        return
    for tid in tids:
        addresses = stack_frames.return_addresses(pid, tid, machine)
        yield tid, shown([symbols.name(address) for address in addresses]), ""
    symbols.close()


def shown(names: list[str]) -> list[str]:
    """Frames to display: a run of the interpreter's own frames becomes one entry, repetitions are removed."""
    found: list[str] = []
    for name in names:
        short = "... the Python interpreter" if _INTERPRETER.search(name) else name
        if not found or found[-1] != short:
            found.append(short)
    return found[:_MOST_FRAMES]


if __name__ == "__main__":
    sys.exit(main())
