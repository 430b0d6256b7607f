"""Records dumps of a real flight recorder: record.py FOLDER behind|skipped|chain|crossed ...

Those here are of PyTorch 2.14.1 (Debian's python3-torch) over gloo. Each job has four ranks on this machine and stops
making progress at its fifth step; then each rank writes what its recorder holds, as pickle and as JSON.
"""

import datetime
import os
import sys
import threading
import time
from pathlib import Path

os.environ |= {"TORCH_FR_BUFFER_SIZE": "2000", "GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0"}

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

WORLD, LAST_STEP, PORT = 4, 4, 29600
DUMPS = vars(c10d)
"""Functions that no type information covers."""


def dump(folder: Path, scenario: str, rank: int) -> None:
    time.sleep(3)
    data = DUMPS["_dump_fr_trace"](
        includeCollectives=True, includeStackTraces=True, onlyActive=False
    )
    (folder / f"{scenario}-{rank}.pickle").write_bytes(data)
    plain = DUMPS["_dump_fr_trace_json"](includeCollectives=True, onlyActive=False)
    (folder / f"{scenario}-{rank}.json").write_bytes(plain)
    while not all((folder / f"{scenario}-{number}.json").exists() for number in range(WORLD)):
        time.sleep(0.2)
    time.sleep(1)
    os._exit(0)


def average(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def gather(tensor: torch.Tensor) -> None:
    dist.all_gather([torch.empty_like(tensor) for _ in range(WORLD)], tensor)


def step(scenario: str, rank: int, number: int, pair: dist.ProcessGroup) -> None:
    tensor, last = torch.ones(16, 4), number == LAST_STEP
    average(tensor)
    if last and (scenario, rank) == ("skipped", 2):
        gather(tensor)
    if last and (scenario, rank) in {("behind", 1), ("chain", 3)}:
        time.sleep(1000)
    if scenario == "chain" and rank in {2, 3}:
        dist.all_reduce(tensor, group=pair)
    if last and scenario == "crossed" and rank == 2:
        dist.all_reduce(tensor, group=pair)
    average(tensor)
    if last and scenario == "crossed" and rank == 3:
        dist.all_reduce(tensor, group=pair)
    gather(tensor)


def train(folder: Path, scenario: str, rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    timeout = datetime.timedelta(seconds=3600)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timeout)
    pair = dist.new_group([2, 3])
    dist.barrier()
    threading.Thread(target=dump, args=(folder, scenario, rank), daemon=True).start()
    for number in range(LAST_STEP + 1):
        step(scenario, rank, number, pair)
    time.sleep(600)


def main() -> None:
    folder = Path(sys.argv[1])
    children = []
    for number, scenario in enumerate(sys.argv[2:]):
        for rank in range(WORLD):
            child = os.fork()
            if not child:
                train(folder, scenario, rank, PORT + number)
            children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
