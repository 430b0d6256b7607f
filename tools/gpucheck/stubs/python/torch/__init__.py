"""Stub with the few names of torch that the NCCL parts use."""

import contextlib
import sys
from collections.abc import Iterator

float32 = "float32"


class _Cuda:
    class CUDAGraph:
        @staticmethod
        def replay() -> None:
            return

    @staticmethod
    @contextlib.contextmanager
    def graph(graph: CUDAGraph, capture_error_mode: str) -> Iterator[None]:
        yield
        print("UserWarning: The CUDA Graph is empty.", file=sys.stderr)

    @staticmethod
    def synchronize() -> None:
        return


cuda = _Cuda()


def ones(count: int, device: str) -> list[float]:
    return [1.0] * min(count, 1)
