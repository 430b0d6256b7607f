"""How fast `kcover-ebpf logs` reads: MB of a container's log a second of CPU, calm and full of errors.

Run as `.venv/bin/python tools/logbench.py [MIB]`. CPU time of this process, so that a busy machine counts little.
"""

import random
import sys
import time

from kcover_ebpf.hardware.catalog.files import shipped
from kcover_ebpf.logs import rules
from kcover_ebpf.logs.reader import LogReader

_CALM = (
    "step 12345 epoch 3 loss 0.123 lr 1e-4 12345 tokens/s rank 7 memory allocated 61.2 GiB GPU time"
)
_ERROR = "RuntimeError: CUDA error: an illegal memory access was encountered"
_BLOCK = 1 << 20


def log(size: int, error_share: float) -> bytes:
    """A container's log of about `size` bytes, in which this share of the lines is known to a rule."""
    chance = random.Random(1)
    made, length = [], 0
    while length < size:
        text = (
            _ERROR if chance.random() < error_share else f"[2026-11-22 10:00:00,123] INFO {_CALM}"
        )
        made.append(f"2026-11-22T10:00:00.123456789Z stdout F {text}\n")
        length += len(made[-1])
    return "".join(made).encode()


def main() -> None:
    size = int(sys.argv[1] if len(sys.argv) > 1 else "64") << 20
    for share in (0.0, 0.0001, 0.01, 1.0):
        data = log(size if share < 0.1 else size >> 5, share)
        reader = LogReader(rules.shipped(), shipped())
        begin = time.process_time()
        count = sum(
            1
            for start in range(0, len(data), _BLOCK)
            for _ in reader.feed(data[start : start + _BLOCK])
        )
        took = time.process_time() - begin
        print(f"{share:8.2%} of the lines known: {len(data) / took / 1e6:7.1f} MB/s, {count} found")


if __name__ == "__main__":
    main()
