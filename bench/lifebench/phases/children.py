"""A rank has children that crash, are killed, take long, or are replaced; all of it is meant or dealt with."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import service

from bench.lifebench.life import Training, folder, torch_training

SNIPPETS = {
    "segfault": "import ctypes, time; time.sleep(1); ctypes.string_at(0)",
    "too much CPU": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
    "wrong": "raise SystemExit(1)",
    "never ends": "import time; time.sleep(1000)",
}
CRASHES = """#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void) { char *heap = malloc(300 << 20); memset(heap, 7, 300 << 20); sleep(1); abort(); }
"""


def judged(snippet: str, limit_s: float) -> bool:
    """Whether a generated program passes in its sandbox; it may crash."""
    command = [sys.executable, "-c", snippet]
    try:
        return subprocess.run(command, timeout=limit_s, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def sandbox_crashes(job: Training) -> None:
    """Ranks 1 and 3 try generated programs between their steps; all of these fail in some way."""
    job.train(16)
    with job.phase():
        for snippet in SNIPPETS.values():
            if job.rank % 2:
                judged(snippet, 3.0)
            job.train(3)
    job.train(6)


def sandbox_waits(job: Training) -> None:
    """Rank 1 waits for a program that never ends, until the limit of the sandbox."""
    job.train(18)
    if job.rank == 1:
        with job.phase():
            judged(SNIPPETS["never ends"], 15.0)
    job.train(8)


def saver_killed(job: Training) -> None:
    """The child that saves rank 0's checkpoint is killed, as for its memory; rank 0 notices later and saves again."""

    def save(dies: bool) -> int:
        if child := os.fork():
            return child
        (folder() / "checkpoint").write_bytes(bytes(1 << 20))
        time.sleep(2)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)

    job.train(18)
    with job.phase():
        for dies in (True, False):
            child = save(dies) if job.rank == 0 else 0
            job.train(6)
            if child:
                os.waitpid(child, 0)
    job.train(4)


def core_file(job: Training) -> None:
    """A tool of rank 1 dumps core; the rank has gdb read the core file and trains on."""
    job.train(18)
    if job.rank == 1:
        with job.phase():
            resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
            source = folder() / "tool.c"
            source.write_text(CRASHES)
            subprocess.run(["gcc", "-g", "-o", "tool", source], check=True)
            subprocess.run(["./tool"], check=False)
            cores = [str(path) for path in folder().glob("core*")]
            commands = ["gdb", "-batch", "-ex", "bt", "./tool", *cores]
            subprocess.run(commands, check=True, capture_output=True)
            time.sleep(3)
    job.train(8)


def half_busy(seconds: float) -> int:
    """Tokenize for the given seconds, at half of a CPU."""
    end_s, count = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        count += sum(range(20_000)) > 0
        time.sleep(0.001)
    return count


def die(_: float) -> int:
    """What a worker does that the kernel kills."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def tokenize(job: Training) -> None:
    """Rank 0 tokenizes with a pool of processes first, the others wait for it."""
    job.train(18)
    if job.rank == 0:
        with job.phase(), get_context("fork").Pool(2) as pool:
            pool.map(half_busy, [15.0, 15.0], chunksize=1)
    job.train(8)


def broken_pool(job: Training) -> None:
    """A worker of rank 2's pool is killed; the rank makes a new pool and has the work done there."""
    job.train(18)
    if job.rank == 2:
        with job.phase():
            for work in (die, half_busy):
                try:
                    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
                        list(pool.map(work, [8.0, 8.0]))
                except BrokenProcessPool:
                    time.sleep(2)
    job.train(8)


def replaced(job: Training) -> None:
    """Rank 1 kills its own tokenizer server and starts it again, while all train."""
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    server = subprocess.Popen(command) if job.rank == 1 else None
    job.train(18)
    with job.phase():
        for _ in range(2):
            if server:
                server.kill()
                server.wait()
                time.sleep(1)
                server = subprocess.Popen(command)
            job.train(5)
    if server:
        server.terminate()
        server.wait()
    job.train(4)


def download(job: Training) -> None:
    """Rank 0 waits for a child that downloads a data set; the server pauses for 10 s on the way."""
    job.train(18)
    if job.rank == 0:
        with job.phase():
            command = [sys.executable, "-c", "import service; service.get('/shard/10')"]
            subprocess.run(command, check=True)
    job.train(8)


def silent_log(job: Training) -> None:
    """Rank 1's log goes through a pipe to a child that ships it, slowly for 16 s: the rank waits to write."""
    shipper = None
    if job.rank == 1:
        code = "import sys, time, os\nwhile data := os.read(0, 4096): time.sleep(0.4)"
        shipper = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    job.train(18)
    if shipper and shipper.stdin:
        with job.phase():
            for _ in range(10):
                shipper.stdin.write(b"step 100 loss 0.693 lr 1e-4\n" * 800)
                shipper.stdin.flush()
        shipper.kill()
        shipper.wait()
    job.train(8)


RUNS: dict[str, Callable[[Training], None]] = {
    "sandbox-crashes": sandbox_crashes,
    "sandbox-waits": sandbox_waits,
    "saver-killed": saver_killed,
    "core-file": core_file,
    "tokenize": tokenize,
    "broken-pool": broken_pool,
    "replaced": replaced,
    "download": download,
    "slow-log-reader": silent_log,
}

if __name__ == "__main__":
    if "download" in sys.argv:
        service.url()
    with torch_training() as training:
        RUNS[sys.argv[1]](training)
