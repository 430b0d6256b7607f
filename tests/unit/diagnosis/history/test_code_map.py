"""Whose code a thread burns a CPU in, and what that says."""

import pytest

from kcover_ebpf.diagnosis.history.code_map import Code, CodeMap, of_module, of_stack
from kcover_ebpf.facts.host import Module

MODULES = {
    "libcuda.so.550.54.14": Code.DEVICE,
    "libcuda.so.1 (deleted)": Code.DEVICE,
    "libcudart-9335f6a2.so.12": Code.DEVICE,
    "libnvidia-ml.so.1": Code.DEVICE,
    "libnvidia-ptxjitcompiler.so.550": Code.OWN,
    "libhsa-runtime64.so.1": Code.DEVICE,
    "libamdhip64.so.6": Code.DEVICE,
    "libnccl.so.2": Code.COLLECTIVE,
    "librccl.so.1": Code.COLLECTIVE,
    "libmpi.so.40.30.4": Code.MESSAGES,
    "libuct_ib.so.0": Code.MESSAGES,
    "libucp.so.0": Code.MESSAGES,
    "[vdso]": Code.PLUMBING,
    "libc.so.6": Code.PLUMBING,
    "libc-2.31.so": Code.PLUMBING,
    "ld-linux-x86-64.so.2": Code.PLUMBING,
    "python3.11": Code.OWN,
    "libtorch_cuda.so": Code.OWN,
    "libc10.so": Code.OWN,
    "libcublas.so.12": Code.OWN,
    "libcudnn_ops.so.9": Code.OWN,
    "MPI.cpython-311-x86_64-linux-gnu.so": Code.OWN,
    "": Code.OWN,
}


@pytest.mark.parametrize("name", MODULES)
def test_of_module__what_a_module_says(name: str) -> None:
    assert of_module(name) is MODULES[name]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("[vdso]+9f0", "libc.so.6+1", "libcuda.so.1+2", "python3.11+3"), Code.DEVICE),
        (("libc.so.6+1", "libc10.so+4", "python3.11+3"), Code.OWN),
        # a register that the vDSO saved: so in 7 of 8 readings of a real process
        (
            ("python3.11+18ce11", "libc.so.6+cf439", "libcuda.so.1+117a", "libffi.so.8+6"),
            Code.DEVICE,
        ),
        (("[vdso]+1", "python3.11+3", "libc.so.6+1", "libmpi.so.40+2"), Code.MESSAGES),
        # what waits may be left over from before, or what works may have been saved
        (("libc.so.6+1", "python3.11+3", "libcuda.so.1+2"), None),
        (("python3.11+3", "libc.so.6+1", "python3.11+4", "libcuda.so.1+2"), None),
        ((*["python3.11+3"] * 7, "libc.so.6+1", "libcuda.so.1+2"), None),
        (("libc.so.6+1",), None),
        ((), None),
    ],
)
def test_of_stack__the_innermost_code_of_a_stack_that_is_no_plumbing_decides(
    words: tuple[str, ...], code: Code | None
) -> None:
    assert of_stack(words) is code


def test_code_map__an_address_is_found_in_its_mapping_alone() -> None:
    code = CodeMap([Module(0x3000, 0x4000, "libcuda.so.1"), Module(0x1000, 0x2000, "python3.11")])
    found = [code.at(number) for number in (0xFFF, 0x1000, 0x1FFF, 0x2000, 0x3000, 0x3FFF, 0x4000)]
    assert found == [None, Code.OWN, Code.OWN, None, Code.DEVICE, Code.DEVICE, None]
    assert code
    assert not CodeMap()
