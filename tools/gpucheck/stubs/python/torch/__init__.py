"""Stub with the few names of torch that the part about NCCL uses."""

float32 = "float32"


class _Cuda:
    @staticmethod
    def synchronize() -> None:
        return


cuda = _Cuda()


def ones(count: int, device: str) -> list[float]:
    return [1.0] * min(count, 1)
