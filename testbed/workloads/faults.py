"""Faults that a rank (or its data loader worker) does to itself, and nothing else.

Each function is one fault, does not return unless the fault is one that leaves the process
running, and has nothing to do with how it is detected. Faults from outside (signals, cgroups,
network) are the injector's business: bench/faultbench/inject.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from testbed.workloads.training import EventLog, Options, Run

FOREVER_S = 10**8
PAGE_BYTES = 1 << 20


def exit_one(run: Run) -> None:
    """The script gives up with exit code 1."""
    os._exit(1)


def exit_zero(run: Run) -> None:
    """The rank believes that the work is done, and leaves with code 0."""
    os._exit(0)


def segfault(run: Run) -> None:
    """A bad pointer, in real C code rather than a signal sent to oneself."""
    ctypes.string_at(1)


def abort(run: Run) -> None:
    """A failed assertion of a C++ runtime."""
    os.abort()


def out_of_memory(run: Run) -> None:
    """Grow until the memory cgroup's limit, set by the injector, kills the process."""
    grow(run.log)


def grow(log: EventLog) -> None:
    """Allocate 8 MiB every 10 ms until something ends the process; the last note shows when."""
    hog = []
    while True:
        log.write("grow")
        hog.append(b"x" * (8 * PAGE_BYTES))
        time.sleep(0.01)


def sleep(run: Run) -> None:
    """Wait for something that never comes, in a sleep."""
    time.sleep(FOREVER_S)


def loop_python(run: Run) -> None:
    """Loop in Python byte code."""
    while True:
        pass


def loop_native(run: Run) -> None:
    """Loop in native code that lets other threads run."""
    while True:
        run.pace.burn(1.0)


def interpreter_lock(run: Run) -> None:
    """Block in a C call that keeps the interpreter lock: every Python thread stops."""
    ctypes.PyDLL(None).pause()


def deadlock_threads(run: Run) -> None:
    """Two threads of one rank take two locks in opposite order."""
    first, second = threading.Lock(), threading.Lock()
    ready = threading.Event()

    def other() -> None:
        with second:
            ready.set()
            first.acquire()

    with first:
        threading.Thread(target=other, daemon=True).start()
        ready.wait()
        second.acquire()


def child_wait(run: Run) -> None:
    """Wait for a program that was started for this rank, and never ends."""
    subprocess.run(["sleep", str(FOREVER_S)], check=True)


def fork_with_lock(run: Run) -> None:
    """Fork loader workers while a thread holds a lock that they will want."""
    held = threading.Event()

    def holder() -> None:
        with WORKER_LOCK:
            held.set()
            time.sleep(2.0)

    threading.Thread(target=holder, daemon=True).start()
    held.wait()
    run.trainer.new_epoch()


WORKER_LOCK = threading.Lock()


def read_path(run: Run) -> None:
    """Read a file that never answers: a FIFO without a writer, a server that went away."""
    with open(run.options.inject_path, "rb") as file:
        file.read()


def write_path(run: Run) -> None:
    """Save a checkpoint to a file system that stops, or has no room."""
    with open(run.options.inject_path, "wb") as file:
        file.writelines(b"x" * PAGE_BYTES for _ in range(64))
        file.flush()
        os.fsync(file.fileno())


def swap_storm(run: Run) -> None:
    """Touch far more memory than the limit before each computation; the injector has the swap."""
    hog = bytearray(96 * PAGE_BYTES)
    plain = run.pace.compute

    def compute() -> None:
        for page in range(0, len(hog), 4096):
            hog[page] = (hog[page] + 1) & 0xFF
        plain()

    run.pace.compute = compute  # type: ignore[method-assign]


def slow(run: Run) -> None:
    """Compute `inject_factor` times longer than the others from now on."""
    run.pace.factor = run.options.inject_factor


def skip_loss(run: Run) -> None:
    """Leave out one small collective: the next one of this rank meets one of another size."""
    run.skip_loss = True


FAULTS: dict[str, Callable[[Run], None]] = {
    "exit-one": exit_one,
    "exit-zero": exit_zero,
    "segfault": segfault,
    "abort": abort,
    "oom": out_of_memory,
    "sleep": sleep,
    "loop-python": loop_python,
    "loop-native": loop_native,
    "interpreter-lock": interpreter_lock,
    "deadlock-threads": deadlock_threads,
    "child-wait": child_wait,
    "fork-with-lock": fork_with_lock,
    "read-path": read_path,
    "write-path": write_path,
    "swap-storm": swap_storm,
    "slow": slow,
    "skip-loss": skip_loss,
}
MISMATCHES = ("crossed", "sizes", "barrier", "kinds", "unreceived", "endless-kernel", "dead-link")
"""Faults made of collectives: every rank takes part, one of them or its device wrongly."""


def begin(run: Run) -> None:
    """Begin the fault that the options name, if this rank is its culprit."""
    kind = run.options.inject
    if kind in MISMATCHES:
        if run.is_culprit:
            run.log.write("fault", kind=kind, culprit=run.trainer.rank)
        run.trainer.mismatch(kind, run.is_culprit)
    elif kind == "skip-step":
        skip_step(run)
    elif kind == "closed-window":
        closed_window(run)
    elif kind == "stuck-reader":
        stuck_reader(run)
    elif kind == "loop-heartbeats":
        loop_heartbeats(run)
    elif kind in FAULTS and run.is_culprit:
        run.log.write("fault", kind=kind, culprit=run.trainer.rank)
        FAULTS[kind](run)


def skip_step(run: Run) -> None:
    """One rank leaves out one step's collectives; equal sizes hide it until the training ends."""
    run.steps_left = 8
    if run.is_culprit:
        run.log.write("fault", kind="skip-step", culprit=run.trainer.rank)
        run.skip_update = run.skip_loss = True


def closed_window(run: Run) -> None:
    """The neighbour streams data to the culprit, whose reader is stuck: the window closes.

    The culprit itself continues into the collective, where the neighbour, blocked in send, never
    arrives.
    """
    culprit, rank, world = run.options.inject_rank, run.trainer.rank, run.trainer.world
    path = Path(run.options.inject_path)
    if rank == culprit:
        listener = _announced_listener(path)
        run.log.write("fault", kind="closed-window", culprit=rank)

        def reader() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            deadlock_threads(run)

        threading.Thread(target=reader, daemon=True).start()
    elif rank == (culprit + 1) % world:
        _to_listener(path).sendall(bytes(256 * PAGE_BYTES))


def _announced_listener(path: Path) -> socket.socket:
    """A listener whose port is in the file."""
    listener = socket.create_server(("", 0))
    complete = path.with_suffix(".new")
    complete.write_text(str(listener.getsockname()[1]))
    complete.rename(path)
    return listener


def _to_listener(path: Path) -> socket.socket:
    """A connection to the listener that the file announces, once it does."""
    while not path.exists():
        time.sleep(0.05)
    return socket.create_connection(("127.0.0.1", int(path.read_text())))


def stuck_reader(run: Run) -> None:
    """A thread that hands on what the neighbour sends is stuck; the rank waits on its queue, with data unread."""
    culprit, rank, world = run.options.inject_rank, run.trainer.rank, run.trainer.world
    path = Path(run.options.inject_path)
    if rank == culprit:
        listener, received = _announced_listener(path), queue.Queue[bytes]()
        run.log.write("fault", kind="stuck-reader", culprit=rank)

        def reader() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            deadlock_threads(run)
            received.put(connection.recv(PAGE_BYTES))

        threading.Thread(target=reader, daemon=True).start()
        received.get()
    elif rank == (culprit + 1) % world:
        _to_listener(path).sendall(bytes(1 << 14))


def loop_heartbeats(run: Run) -> None:
    """Every rank has a thread that sends rank 0 a byte each 100 ms; one rank loops in Python at the same time."""
    path = Path(run.options.inject_path)
    if run.trainer.rank == 0:
        listener = _announced_listener(path)
        for _ in range(1, run.trainer.world):
            stream, _ = listener.accept()
            threading.Thread(target=_read_all, args=(stream,), daemon=True).start()
    else:
        threading.Thread(target=_beat, args=(_to_listener(path),), daemon=True).start()
    if run.is_culprit:
        run.log.write("fault", kind="loop-heartbeats", culprit=run.trainer.rank)
        loop_python(run)


def _beat(stream: socket.socket) -> None:
    while True:
        stream.sendall(b".")
        time.sleep(0.1)


def _read_all(stream: socket.socket) -> None:
    while stream.recv(1):
        pass


def in_worker(options: Options, log: EventLog) -> None:
    """Do to this data loader worker what `options.inject` asks for; returns when it is no wait."""
    kind = options.inject
    log.write("fault", kind=kind, culprit=options.inject_rank)
    if kind == "worker-sleep":
        time.sleep(FOREVER_S)
    elif kind == "worker-read":
        with open(options.inject_path, "rb") as file:
            file.read()
    elif kind == "worker-oom":
        grow(log)
    elif kind == "worker-loop":
        while True:
            pass
    elif kind == "worker-killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind in ("worker-stopped", "worker-spawned-stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
