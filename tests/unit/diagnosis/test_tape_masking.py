"""A tape contains no names unless it is asked to, and is judged as the job itself was."""

from __future__ import annotations

import types
import typing
from dataclasses import astuple, fields, is_dataclass, replace
from typing import Any

import pytest

from kcover_ebpf.diagnosis import wait_table
from kcover_ebpf.diagnosis.history import code_map, stacks
from kcover_ebpf.diagnosis.judge import nccl
from kcover_ebpf.diagnosis.membership import roles
from kcover_ebpf.facts.devices import CudaContext, DeviceFault, PortChange
from kcover_ebpf.facts.host import (
    CodeSeen,
    CollectiveRank,
    CollectivesSeen,
    Module,
    ProcessSeen,
    WaitedFile,
)
from kcover_ebpf.facts.kernel import SocketSample, TcpRetransmit, Tick
from kcover_ebpf.ids import Inode, Pid, Tid
from kcover_ebpf.tapes.entries import FACTS
from kcover_ebpf.tapes.masking import KEPT, LEFT_OUT, Masks


def parts(hint: Any) -> set[Any]:
    """The classes that a type is made of."""
    inner = typing.get_args(hint)
    if not inner:
        return {getattr(hint, "__supertype__", hint)} - {types.NoneType}
    return {part for one in inner if one is not Ellipsis for part in parts(one)}


def _is_class(part: object) -> bool:
    return is_dataclass(part)


def reachable(kinds: set[type]) -> set[type]:
    found: set[type] = set()
    while kinds:
        kind = kinds.pop()
        found.add(kind)
        for hint in typing.get_type_hints(kind).values():
            kinds |= {part for part in parts(hint) if _is_class(part)} - found
    return found


def test_kept__every_text_of_a_fact_has_a_rule_and_every_rule_a_text() -> None:
    rules = Masks().rules
    kinds = reachable(set(FACTS.values()))
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        ruled = {*rules.get(kind, ()), *KEPT.get(kind, ())}
        texts = {field.name for field in fields(kind) if str in parts(hints[field.name])}
        # a fact that holds others has a rule for these as well
        holders = {
            field.name
            for field in fields(kind)
            if any(set(rules.get(part, ())) for part in parts(hints[field.name]) if _is_class(part))
        }
        assert ruled == texts | holders, kind
    assert set(rules) | set(KEPT) <= kinds


def seen(pid: int, ppid: int, *argv: str, **environ: str) -> ProcessSeen:
    comm = argv[0].rpartition("/")[2][:15]
    return ProcessSeen(1, Pid(pid), Pid(ppid), comm, argv, environ)


SECRET = "acme-llm"
JOBS = {
    "torchrun": [
        seen(1, 0, "/opt/acme-llm/bin/python3", "/usr/bin/torchrun", "/home/acme-llm/train.py"),
        seen(2, 1, "/opt/acme-llm/bin/python3", "acme-llm.py", RANK="0", WORLD_SIZE="2"),
        seen(3, 1, "/opt/acme-llm/bin/python3", "acme-llm.py", RANK="1", WORLD_SIZE="2"),
        seen(4, 2, "/opt/acme-llm/bin/python3", "-c", "from x import y", "--multiprocessing-fork"),
        seen(5, 2, "/usr/bin/python3", "-c", "from multiprocessing.resource_tracker import main"),
        seen(6, 3, "nvcc", "acme-llm.cu"),
        seen(7, 3, "/opt/acme-llm/bin/python3", "/x/acme-llm/compile_worker/__main__.py"),
    ],
    "module": [
        seen(1, 0, "python3", "-m", "torch.distributed.run", "acme-llm.py"),
        seen(2, 1, "python3", "-m", "acme-llm.torch.distributed.runner", RANK="0"),
    ],
    "mpi": [
        seen(1, 0, "sh", "-c", "mpirun acme-llm"),
        seen(2, 1, "mpirun", "-n", "2", "./acme-llm"),
        seen(3, 2, "./acme-llm", OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2"),
        seen(4, 3, "./acme-llm"),
        seen(5, 2, "ssh", "acme-llm-node7", "orted"),
    ],
    "numberless": [seen(1, 0, "acme-llm"), seen(2, 1, "acme-llm"), seen(3, 1, "acme-llm-2")],
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_masks__roles_and_ranks_are_those_of_the_job_and_no_name_is(job: list[ProcessSeen]) -> None:
    masks = Masks()
    masked = [masks.of(process) for process in job]
    assert roles.classify(masked) == roles.classify(job)
    assert SECRET not in repr(masked)


def test_masks__of_the_environment_only_numbers_are_kept() -> None:
    process = seen(
        1, 0, "x", RANK="3", MASTER_ADDR="acme-llm-0.acme", MASTER_PORT="29500", HOME="/x"
    )
    found = Masks().of(process).rank_environ
    assert (found["RANK"], found["MASTER_PORT"]) == ("3", "29500")
    assert found["MASTER_ADDR"].startswith("name-")
    assert "HOME" not in found


KNOWN = ["libcuda.so.550.54", "libnccl.so.2", "libtorch_cuda.so", "libtorch_cpu.so", "libc.so.6"]
KNOWN += ["[vdso]", "", "python3.11", "libpython3.11.so.1.0", "libmpi.so.40", "libstdc++.so.6"]
OTHERS = ["acme-llm.so", "libnccl-acme-llm.so", "libcuda.so-acme-llm", "python-acme-llm"]
OTHERS += ["libnvidia-ptxjitcompiler.acme-llm", "libjaxacme-llm.so", "mca_btl_acme-llm.so"]


@pytest.mark.parametrize("name", KNOWN)
def test_masks__common_libraries_keep_their_names(name: str) -> None:
    code = CodeSeen(1, Pid(1), Tid(1), (f"{name}+1f0",), (Module(1, 2, name),))
    assert Masks().of(code) == code
    # a build identifies the owner of a library
    built = replace(code, stack=(f"{name}~0a1b2c3d+1f0",))
    assert Masks().of(built) == code


@pytest.mark.parametrize("name", OTHERS)
def test_masks__other_modules_mean_to_the_judge_what_they_meant(name: str) -> None:
    masked = Masks().of(Module(1, 2, name)).name
    assert SECRET not in masked
    assert code_map.of_module(masked) is code_map.of_module(name)
    for asked in (stacks.PLUMBING, wait_table.FRAMEWORKS, nccl.LIBRARIES):
        assert masked.startswith(asked) == name.startswith(asked)


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("socket:[123]", True),
        ("pipe:[123]", True),
        ("anon_inode:[eventpoll]", True),
        ("/dev/kfd", True),
        ("/dev/dri/renderD128", True),
        ("/dev/accel/accel0", True),
        ("/dev/nvidia-uvm", True),
        ("/dev/nvidia-caps/nvidia-cap1", True),
        ("/dev/infiniband/uverbs0", True),
        ("/dev/shm/acme-llm", False),
        ("/data/acme-llm/shard-1.tar", False),
        ("/memfd:acme-llm (deleted)", False),
        ("/dev/acme-llm", False),
    ],
)
def test_masks__devices_keep_their_names_and_files_do_not(target: str, kept: bool) -> None:
    waited = WaitedFile(3, "file", target, Inode(1), "8:1", "ext4")
    masked = Masks().of(waited)
    assert (masked == waited) is kept
    assert SECRET not in masked.target


def test_masks__addresses_stay_different_equal_and_local_as_they_were() -> None:
    masks, here, there = Masks(), ("10.1.2.3", 4000), ("2001:db8::7", 29500)
    one = masks.of(TcpRetransmit(1, Pid(1), here, there))
    other = masks.of(TcpRetransmit(1, Pid(2), there, here))
    assert (one.local, one.remote) == (other.remote, other.local)
    assert one.local[0] != one.remote[0]
    assert (one.local[1], one.remote[1]) == (4000, 29500)
    assert "10.1.2.3" not in repr(one)
    assert "2001:db8" not in repr(one)
    port = masks.of(PortChange(1, "eth0", "", False, "down", ("10.1.2.3",)))
    assert port.addresses == (one.local[0],), "a port is known by its connections"
    local = TcpRetransmit(1, Pid(1), ("127.0.0.1", 1), ("::1", 2))
    assert masks.of(local) == local


def test_masks__texts_of_drivers_are_left_out_and_their_absence_stays() -> None:
    fault = DeviceFault(1, Pid(1), "0000:5d:00.0", "Xid 79", "of acme-llm", True, uuid="GPU-1")
    masked = Masks().of(fault)
    assert (masked.text, masked.code, masked.device) == (LEFT_OUT, "Xid 79", "0000:5d:00.0")
    assert masked.uuid.startswith("name-")
    rank = CollectiveRank(1, 4, "10.1.2.3", comm="0xacme")
    reported = Masks().of(CollectivesSeen(1, 1, behind=(rank,)))
    assert reported.trouble == ""
    assert reported.behind[0].rank == 1
    assert "acme" not in repr(reported)
    assert "10.1.2.3" not in repr(reported)


def test_masks__pseudonyms_are_the_same_within_a_tape_and_others_in_the_next() -> None:
    context = CudaContext(1, Pid(1), "GPU-1", True)
    masks = Masks()
    assert masks.of(context) == masks.of(context)
    assert masks.of(context) != Masks().of(context)


def test_masks__a_fact_without_texts_is_as_it_was() -> None:
    tick = Tick(1, 2, 0, False)
    assert Masks().of(tick) is tick
    assert astuple(tick)[0] == 1
    assert SocketSample in KEPT
