"""Quiet phases: healthy things that look like a hang. A verdict in one is a false one.

Each phase is written down as `phase_begin` and `phase_end`. Some stop the training for a while (a
checkpoint, with the others waiting in a barrier), some only change how it runs for a while (slow
input, odd step times).
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from testbed.workloads import remote
from testbed.workloads.training import EventLog, Options, Run

MIB = 1 << 20
DIRECT_BYTES_S = 10 * MIB
"""Speed that the injector throttles the disk to for a write that is one single call."""


def write_checkpoint(run: Run, end: float) -> None:
    """Write, flush and sync parts of a checkpoint until the monotonic time `end`."""
    part = os.urandom(4 * MIB)
    count = 0
    while time.monotonic() < end:
        with open(f"{run.options.inject_path}.{count % 2}", "wb") as file:
            file.write(part)
            file.flush()
            os.fsync(file.fileno())
        count += 1
        time.sleep(0.05)


def checkpoint(run: Run) -> None:
    """Rank 0 saves to disk while the others wait."""
    if run.trainer.rank == 0:
        write_checkpoint(run, time.monotonic() + run.options.inject_s)
    run.trainer.barrier()


def checkpoint_direct(run: Run) -> None:
    """Rank 0 saves with one direct write call that lasts the whole phase (a throttled disk)."""
    if run.trainer.rank == 0:
        size = int(run.options.inject_s) * DIRECT_BYTES_S
        buffer = mmap.mmap(-1, size)
        fd = os.open(run.options.inject_path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        written = os.write(fd, buffer)
        run.log.write("written", bytes=written)
        os.close(fd)
    run.trainer.barrier()


def checkpoint_slow(run: Run) -> None:
    """Rank 0 saves to a network file system that answers slowly, but answers."""
    if run.trainer.rank == 0:
        end = time.monotonic() + run.options.inject_s
        with open(run.options.inject_path, "wb", buffering=0) as file:
            while time.monotonic() < end:
                file.write(bytes(MIB))
                file.seek(0)
    run.trainer.barrier()


def evaluate_zero(run: Run) -> None:
    """Rank 0 evaluates, with input and prints, while the others wait."""
    if run.trainer.rank == 0:
        end = time.monotonic() + run.options.inject_s
        while time.monotonic() < end:
            run.trainer.next_batch()
            run.pace.burn(0.02)
            time.sleep(0.1)
    run.trainer.barrier()


def evaluate_silent(run: Run) -> None:
    """Rank 0 evaluates without any system call while the others wait."""
    if run.trainer.rank == 0:
        run.pace.burn(run.options.inject_s)
    run.trainer.barrier()


def evaluate_device(run: Run) -> None:
    """Rank 0 evaluates on its device, batch for batch, while the others wait."""
    if run.trainer.rank == 0:
        end = time.monotonic() + run.options.inject_s
        while time.monotonic() < end:
            run.pace.burn(0.02)
            run.pace.wait(0.5)
    run.trainer.barrier()


def evaluate_all(run: Run) -> None:
    """All ranks evaluate at another rhythm: no gradients, a barrier now and then."""
    for _ in range(max(1, int(run.options.inject_s / 5))):
        for _ in range(10):
            run.trainer.next_batch()
            run.pace.burn(0.02)
            time.sleep(0.4)
        run.trainer.barrier()


def compile_for(seconds: float) -> None:
    """Compile over and over with the real compiler, as a graph compiler does with its kernels."""
    lines = [
        f"double f{n}(double *a) {{ return a[{n}] * f{n - 1}(a) + {n}; }}" for n in range(1, 2000)
    ]
    source = "\n".join(["double f0(double *a) { return a[0]; }", *lines])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        command = ["gcc", "-x", "c", "-O2", "-c", "-o", "/dev/null", "-"]
        subprocess.run(command, input=source.encode(), check=True)


def compile_one(run: Run) -> None:
    """Rank 0 compiles (the others have the cache) while they wait."""
    if run.trainer.rank == 0:
        compile_for(run.options.inject_s)
    run.trainer.barrier()


def compile_all(run: Run) -> None:
    """Every rank compiles for itself."""
    compile_for(run.options.inject_s)
    run.trainer.barrier()


def long_compute(run: Run) -> None:
    """All ranks accumulate gradients for long, without a system call or a collective."""
    run.pace.burn(run.options.inject_s)


def device_long(run: Run) -> None:
    """All ranks wait for their devices for long, in one step."""
    run.pace.wait(run.options.inject_s)


def idle_all(run: Run) -> None:
    """All ranks sleep: a back-off while the input data are being prepared."""
    time.sleep(run.options.inject_s)


def rejoin(run: Run) -> None:
    """The process group is left and formed again, ranks arriving one after the other."""
    run.trainer.barrier()
    time.sleep(run.trainer.rank * run.options.inject_s / run.trainer.world)
    run.trainer.rejoin()


def ask_remote(run: Run) -> None:
    """Rank 0 asks a server that answers late; the others wait."""
    if run.trainer.rank == 0:
        remote.get(run.options.inject_path)
    run.trainer.barrier()


def upload(run: Run) -> None:
    """Rank 0 sends its checkpoint to a server that takes it slowly; the others wait."""
    if run.trainer.rank == 0:
        remote.put(run.options.inject_path, run.options.inject_s)
    run.trainer.barrier()


def save_remote(run: Run) -> None:
    """Rank 0 saves to a file server that is late when the file is synchronised, or closed; the others wait."""
    if run.trainer.rank == 0:
        with open(run.options.inject_path, "wb", buffering=0) as file:
            file.write(bytes(MIB))
            os.fsync(file.fileno())
    run.trainer.barrier()


def serve(run: Run) -> None:
    """No request comes: rank 0 waits for one, the others for rank 0."""
    if run.trainer.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            select.select([listener], [], [], run.options.inject_s)
    run.trainer.barrier()


def ask_user(run: Run) -> None:
    """Rank 0 asks a person on its standard input; the others wait."""
    if run.trainer.rank == 0:
        print("continue? ", end="", file=sys.stderr, flush=True)
        sys.stdin.readline()
    run.trainer.barrier()


def first_step(run: Run) -> None:
    """The first step takes six times as long: it compiles."""
    run.factors = [6.0, 1.0]


def step_lengths(run: Run) -> None:
    """Steps become twice, then ten times as long (longer sequences)."""
    few = run.options.step_s > 5
    run.factors = [2.0, 10.0, 1.0] if few else [2.0] * 4 + [10.0] * 2 + [1.0]


def heavy_tail(run: Run) -> None:
    """Step times with a heavy tail, different on every rank."""
    run.pace.tail = np.random.default_rng(run.trainer.rank)
    run.ends_mono = time.monotonic() + run.options.inject_s


def checkpoint_thread(run: Run) -> None:
    """Rank 0 saves in a thread while the training continues."""
    if run.trainer.rank == 0:
        end = time.monotonic() + run.options.inject_s
        threading.Thread(target=write_checkpoint, args=(run, end), daemon=True).start()
    run.ends_mono = time.monotonic() + run.options.inject_s


def checkpoint_child(run: Run) -> None:
    """Rank 0 saves in a forked child while the training continues."""
    end = time.monotonic() + run.options.inject_s
    if run.trainer.rank == 0 and os.fork() == 0:
        write_checkpoint(run, end)
        os._exit(0)
    run.ends_mono = end


def finish_apart(run: Run) -> None:
    """The training ends here; what each rank still does is in `at_end`."""
    run.steps_left = 1


STOPPING: dict[str, Callable[[Run], None]] = {
    "checkpoint": checkpoint,
    "checkpoint-direct": checkpoint_direct,
    "checkpoint-slow": checkpoint_slow,
    "evaluate-zero": evaluate_zero,
    "evaluate-silent": evaluate_silent,
    "evaluate-device": evaluate_device,
    "evaluate-all": evaluate_all,
    "compile-one": compile_one,
    "compile-all": compile_all,
    "long-compute": long_compute,
    "device-long": device_long,
    "idle-all": idle_all,
    "rejoin": rejoin,
    "ask-user": ask_user,
    "ask-remote": ask_remote,
    "upload": upload,
    "save-remote": save_remote,
    "serve": serve,
}
GOING_ON: dict[str, Callable[[Run], None]] = {
    "first-step": first_step,
    "step-lengths": step_lengths,
    "heavy-tail": heavy_tail,
    "checkpoint-thread": checkpoint_thread,
    "checkpoint-child": checkpoint_child,
    "finish-apart": finish_apart,
}


def at_start(options: Options, rank: int, world: int, log: EventLog) -> None:
    """Phase `slow-start`: ranks import for long, and not equally long, before they join."""
    if options.inject != "slow-start":
        return
    log.write("phase_begin", kind="slow-start")
    end = time.monotonic() + options.inject_s * (rank + 1) / world
    modules = sorted(Path(os.__file__).parent.rglob("*.py"))
    while time.monotonic() < end:
        for path in modules[:200]:
            if time.monotonic() > end:
                break
            compile(path.read_bytes(), str(path), "exec")
            time.sleep(0.05)
    log.write("phase_end", kind="slow-start")


def begin(run: Run) -> None:
    """Begin the phase that the options name, and end it too where it stops the training."""
    kind = run.options.inject
    if kind in STOPPING:
        run.log.write("phase_begin", kind=kind)
        STOPPING[kind](run)
        run.log.write("phase_end", kind=kind)
    elif kind in GOING_ON:
        run.log.write("phase_begin", kind=kind)
        GOING_ON[kind](run)


def before_step(run: Run) -> None:
    """Set this step's length; end a phase that lets the training continue when its time is over."""
    if run.factors:
        run.pace.factor = run.factors.pop(0)
        if run.pace.factor == 1.0:
            run.log.write("phase_end", kind=run.options.inject)
    if run.ends_mono is not None and time.monotonic() > run.ends_mono:
        run.pace.tail = run.ends_mono = None
        run.log.write("phase_end", kind=run.options.inject)


def at_end(run: Run) -> None:
    """Phase `finish-apart`: ranks have still different amounts to upload after the last step."""
    if run.options.inject != "finish-apart":
        return
    for _ in range(int(run.trainer.rank * run.options.inject_s / run.trainer.world / 0.1)):
        run.pace.burn(0.01)
        time.sleep(0.09)
    run.log.write("phase_end", kind="finish-apart")
