"""Stacks of real processes, and mappings and addresses of any kind."""

import ctypes
import ctypes.util
import mmap
import os
import struct
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.diagnosis.history.stacks import similarity, unbuilt
from kcover_ebpf.facts.host import ReadingRequest
from kcover_ebpf.host import stack_words
from kcover_ebpf.host.build_ids import HEAD_BYTES, short_build_id
from kcover_ebpf.host.proc_text import code_mappings
from kcover_ebpf.host.stack_words import ProcessMemory, read_memory
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.host import MAPS_AGE_S, MAPS_LONGEST_S
from tests.unit.support.children import child_in

pytestmark = pytest.mark.needs("root")

LOCK = "lock = threading.Lock(); lock.acquire(); ready(); lock.acquire()"
FOREIGN = "ready(); libc.pause()"
GONE = Pid(2**22 + 1)


def words_of(request: ReadingRequest) -> tuple[str, ...]:
    text = Path(f"/proc/{request.pid}/task/{request.tid}/syscall").read_text().split()
    return ProcessMemory().words(request.pid, int(text[-2], 16))


def test_process_memory__equal_waits_have_similar_stacks_whatever_the_addresses_and_other_waits_have_not() -> (
    None
):
    with child_in(LOCK) as one, child_in(LOCK) as two, child_in(FOREIGN) as other:
        first, second, third = words_of(one), words_of(two), words_of(other)
    assert min(len(first), len(third)) > 5
    assert similarity(first, second) > 0.85
    assert similarity(first, third) < 0.6
    assert any(word.startswith("libc") for word in first)


def test_process_memory__a_word_is_the_offset_in_the_file_of_the_module() -> None:
    memory = ProcessMemory()
    pid = Pid(os.getpid())
    maps = stack_words._read_maps(pid)
    raw = struct.pack("=4Q", maps.starts[0] + 5, maps.ends[0], 0, 2**64 - 1)
    held = bytearray(raw)
    address = _address_of(held)
    word = f"{maps.names[0]}+{maps.starts[0] + 5 - maps.bases[0]:x}"
    found = memory.words(pid, address)
    assert unbuilt(found)[0] == word
    memory.forget(pid)
    assert memory.words(pid, address) == found


def test_process_memory__a_module_is_named_with_the_build_id_of_its_file() -> None:
    library = ctypes.util.find_library("c")
    pid = Pid(os.getpid())
    path = next(
        code_mapping.path
        for code_mapping in code_mappings(Path("/proc/self/maps").read_text().splitlines())
        if library is not None and code_mapping.path.endswith(f"/{library}")
    )
    build_id = short_build_id(Path(path).read_bytes()[:HEAD_BYTES])
    assert len(build_id) == 8
    inside = ctypes.cast(ctypes.CDLL(library).getpid, ctypes.c_void_p).value or 0
    held = bytearray(struct.pack("=Q", inside))
    (word, *_) = ProcessMemory().words(pid, _address_of(held))
    assert word.startswith(f"{library}~{build_id}+")


def test_process_memory__the_build_of_a_module_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, pid = ProcessMemory(), Pid(os.getpid())
    heads: list[int] = []
    read = stack_words.read_memory

    def counted(pid: Pid, address: int, size: int) -> bytes:
        heads.extend([address] * (size == HEAD_BYTES))
        return read(pid, address, size)

    monkeypatch.setattr(stack_words, "read_memory", counted)
    held = bytearray(struct.pack("=4Q", *[stack_words._read_maps(pid).starts[0] + 5] * 4))
    for _ in range(3):
        assert memory.words(pid, _address_of(held))
    assert len(heads) == len(set(heads)) > 0


def _address_of(held: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(held)).from_buffer(held))


@given(st.integers(-1, 2**64), st.integers(0, 64))
def test_read_memory__memory_at_any_address_is_bytes_or_nothing(address: int, size: int) -> None:
    assert len(read_memory(Pid(os.getpid()), address, size)) <= size


def test_read_memory__a_process_that_is_gone_has_no_memory_and_no_words() -> None:
    assert read_memory(GONE, 4096, 16) == b""
    assert ProcessMemory().words(GONE, 4096) == ()


MAPS = stack_words._Maps(
    0.0,
    array("Q", [0x1000, 0x5000]),
    array("Q", [0x2000, 0x6000]),
    ["a", "b"],
    array("Q", [0x800, 0x5000]),
    [],
    0.0,
)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        *((0x1000, "a+800"), (0x1FFF, "a+17ff"), (0x5001, "b+1")),
        *((value, None) for value in (0, 0xFFF, 0x2000, 0x6000, 2**64 - 1)),
    ],
)
def test_module_at__a_value_names_code_only_inside_a_mapping(value: int, word: str | None) -> None:
    found = stack_words._module_at(MAPS, value)
    assert (None if found is None else f"{MAPS.names[found[0]]}+{found[1]:x}") == word


@pytest.mark.parametrize(
    ("machine", "value", "expected"),
    [
        # a signature of the processor in the bits that a user address does not use
        ("aarch64", 0x002B_AAAA_BBBB_CCCC, 0xAAAA_BBBB_CCCC),
        ("aarch64", 0xFF7F_AAAA_BBBB_CCCC, 0xAAAA_BBBB_CCCC),
        ("aarch64", 0x0000_FFFF_BBBB_CCCC, 0xFFFF_BBBB_CCCC),
        ("x86_64", 0x002B_AAAA_BBBB_CCCC, 0x002B_AAAA_BBBB_CCCC),
    ],
)
def test_address__a_signed_return_address_is_the_address(
    machine: str, value: int, expected: int
) -> None:
    assert stack_words.address(value, machine) == expected


def test_process_memory__signed_words_are_found_in_their_module() -> None:
    pid = Pid(os.getpid())
    maps = stack_words._read_maps(pid)
    index = next(i for i, start in enumerate(maps.starts) if start < 1 << 48)
    inside = maps.starts[index] + 5
    held = bytearray(struct.pack("=2Q", inside | 0x2B << 48, inside))
    plain = f"{maps.names[index]}+{inside - maps.bases[index]:x}"
    signed, unsigned = (
        unbuilt(ProcessMemory(machine).words(pid, _address_of(held)))
        for machine in ("aarch64", "x86_64")
    )
    assert signed[:2] == (plain, plain)
    assert unsigned[0] == plain


def test_process_memory__a_library_with_line_ends_in_its_name_is_one_mapping(
    tmp_path: Path,
) -> None:
    """A job may map a file of any name; the kernel escapes newlines alone."""
    library = tmp_path / "a\r0 r-xp b\x0cc\u2028d"
    library.write_bytes(bytes(4096))
    with (
        library.open("rb") as file,
        mmap.mmap(
            file.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE
        ),
    ):
        names = [module.name for module in ProcessMemory().modules(Pid(os.getpid()))]
    assert library.name in names


@pytest.mark.parametrize(
    ("age_s", "has_more_code", "is_due"),
    [
        pytest.param(MAPS_AGE_S, True, False, id="they are young"),
        pytest.param(MAPS_AGE_S + 1, True, True, id="there is more code"),
        pytest.param(MAPS_AGE_S + 1, False, False, id="the code is as large as it was"),
        pytest.param(MAPS_LONGEST_S + 1, False, True, id="they are old, whatever their size"),
    ],
)
def test_maps__are_read_again_once_there_is_other_code(
    age_s: float, has_more_code: bool, is_due: bool
) -> None:
    pid = Pid(os.getpid())
    maps = stack_words._read_maps(pid)
    size = 1 << 20 if has_more_code else 4096
    protection = mmap.PROT_READ | (mmap.PROT_EXEC if has_more_code else mmap.PROT_WRITE)
    with mmap.mmap(-1, size, prot=protection):
        assert maps.are_due(pid, maps.read_s + age_s) == is_due


def test_maps__a_check_counts_for_as_long_as_a_reading() -> None:
    pid = Pid(os.getpid())
    maps = stack_words._read_maps(pid)
    assert not maps.are_due(pid, maps.read_s + MAPS_AGE_S + 1)
    maps.code = []
    assert not maps.are_due(pid, maps.read_s + 2 * MAPS_AGE_S)
    assert maps.are_due(pid, maps.read_s + 2 * MAPS_AGE_S + 2)


@given(st.text(max_size=40).filter(lambda path: "\n" not in path))
def test_code_mappings__any_path_is_read_as_one_mapping(path: str) -> None:
    line = f"7f00-7fff r-xp 00001000 08:01 12 /{path}\n"
    (found,) = code_mappings(
        [line, "8000-9000 r-xp 0 00:00 0 \n", "9000-9fff rw-p 0 08:01 12 /x\n"]
    )
    assert found[:3] == (0x7F00, 0x7FFF, 0x1000)
