"""Kernels that ran, from core dumps of GPUs: names, states, and files that are none."""

from __future__ import annotations

import random

import pytest

from kcover_ebpf.devices.cuda_dump import CudaDumpError, kernels_of, plain_name
from kcover_ebpf.model.traced import GpuKernel
from tests.unit.support.fake_cuda_dump import code, dump, grid

NCCL = b"_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LLPv"
WHOLE = dump(
    grid(0x2000, 0xA, state=1),
    grid(0x1000, 0xA),
    grid(0x9999, 0xB),
    grid(0x5000, 0xC),
    modules=[(0xA, code((b"gemm", 0x2000), (NCCL, 0x1000))), (0xB, code((b"only", 0x100)))],
)


def read(data: bytes) -> tuple[GpuKernel, ...]:
    return kernels_of(lambda offset, size: data[offset : offset + size])


def test_kernels_of__a_kernel_is_named_by_the_section_that_its_grid_begins_in() -> None:
    kernels = read(WHOLE)
    named = [(kernel.name, kernel.state) for kernel in kernels]
    assert named == [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "active"),
        ("only", "active"),  # the one kernel of its module
        ("0x5000", "active"),  # of a module that was not dumped
        ("gemm", "pending"),
    ]
    assert {kernel.device for kernel in kernels} == {3}
    assert kernels[0].text == (
        "device 3: ncclDevKernel_AllReduce_Sum_f32_RING_LL (active), "
        "132 x 2 x 1 blocks of 1024 x 1 x 1 threads"
    )


def test_kernels_of__a_file_that_is_still_written_is_no_whole_dump() -> None:
    for length in range(0, len(WHOLE) - 1, 97):
        with pytest.raises(CudaDumpError):
            read(WHOLE[:length])


def test_kernels_of__whatever_bytes_there_are_is_read_or_refused() -> None:
    chance = random.Random(7)
    for _ in range(500):
        data = bytearray(WHOLE)
        for _ in range(chance.randint(1, 30)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            found = read(bytes(data))
        except CudaDumpError:
            continue
        assert len(found) <= 64
        assert all(len(kernel.name) <= 160 and kernel.name.isprintable() for kernel in found)


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("_ZN2at6native18elementwise_kernelILi128EEEvi", "at::native::elementwise_kernel"),
        ("_Z4axpyfPf", "axpy"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("_Z9", "_Z9"),
        ("evil\x1b[2J", "evil?[2J"),
    ],
)
def test_plain_name__arguments_go_and_nothing_is_interpreted(mangled: str, plain: str) -> None:
    assert plain_name(mangled) == plain
