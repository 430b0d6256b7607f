"""User probes on the NCCL of each counted process.

Probes are attached per process, not per file: pods of one image map the same file through several mounts, and would
be counted once for each mount. No call blocks: workers read libraries, attach and detach.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kcover_ebpf.collectives.nccl.counts import Counted
from kcover_ebpf.collectives.nccl.mapped_libraries import Libraries, NoLibrary, mapped
from kcover_ebpf.collectives.nccl.tables import Tables
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import LoadError
from kcover_ebpf.host.capabilities import Capability, raised
from kcover_ebpf.host.elf_functions import ElfError, function_offsets
from kcover_ebpf.host.read_workers import Readers
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.objects import BpfLink, BpfObject
from kcover_ebpf.kernel.probes import ProbeStatus, Refusal, open_object

_MOST_DETACHING = 32
_BLIND_TO = "how many operations each rank launched, where NCCL itself gives no answer"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of an attempt to count a process."""

    links: tuple[BpfLink, ...] = ()
    reason: str = ""
    """Why the process is not counted; empty if it is."""
    may_come: bool = False
    """True if the process has not loaded NCCL yet, so that a later attempt may succeed."""


class NcclProbes:
    """All counted processes of this host. Used by one thread."""

    def __init__(self) -> None:
        self._object: BpfObject | None = None
        self._programs: dict[str, str] = {}
        self._attaching: Readers[Pid, Attempt] = Readers("kcover-nccl")
        self._detaching: Readers[Pid, None] = Readers("kcover-nccl-off")
        self._attempts: dict[Pid, Attempt] = {}
        self._gone: set[Pid] = set()
        reason = self._load()
        self._libraries = Libraries(self._programs)
        self.status = ProbeStatus(
            "nccl", "launches", not reason, reason, _BLIND_TO, Refusal.REFUSED if reason else None
        )
        """Whether the kernel accepts the probes; tried on this process itself."""

    def _load(self) -> str:
        """Load the object; returns why nothing can be counted, empty on success."""
        try:
            self._object = open_object("nccl")
            self._object.load()
            functions = self._object.user_functions()
            self._programs = {function: program for program, function in functions.items()}
            self._tables = Tables(self._object.maps)
            self._try(self._object, next(iter(functions)))
        except (LoadError, ElfError, OSError) as error:
            self._object = None
            return f"user probes are refused: {error}"
        return ""

    @staticmethod
    def _try(bpf_object: BpfObject, program: str) -> None:
        """Attach to a function of our own libbpf that is never called."""
        ours = Pid(os.getpid())
        (library,) = (mapped_file.path for mapped_file in mapped(ours, ("libbpf.so",)))
        with Path(library).open("rb") as file:
            offsets = function_offsets(file.fileno(), ("bpf_object__unpin_maps",))
        with _privileged():
            offset = offsets["bpf_object__unpin_maps"]
            bpf_object.attach_user(program, pid=ours, path=library, offset=offset).destroy()

    def read_by(self, read: Callable[[int, Collection[str]], Mapping[str, int]]) -> None:
        """From now on, read the libraries of ranks with `read`, which replaces `function_offsets`."""
        self._libraries.read = read

    # --- processes

    def attach(self, pid: Pid) -> None:
        """Start to count a process, or try again; the result is in `attempt`."""
        known_attempt = self._attempts.get(pid)
        if self._detaching.is_asked(pid):
            # counts of the previous program: cleared later, they would take the new counts with
            # them
            return
        if self._object is not None and (known_attempt is None or known_attempt.may_come):
            self._attaching.ask(pid, lambda: self._attach(pid))

    def attempt(self, pid: Pid) -> Attempt | None:
        """The result of the last attempt; None before the first and while one is under way."""
        return self._attempts.get(pid)

    def collect(self) -> None:
        """Take over the results of attempts that workers have finished; never waits."""
        self._detaching.take((), 0.0)
        for pid, result in self._attaching.take((), 0.0):
            attempt = result or Attempt(reason="its library could not be read")
            if pid not in self._gone:
                self._attempts[pid] = attempt
                continue
            self._gone.discard(pid)
            self._release(pid, attempt)

    def forget(self, pid: Pid) -> None:
        """Detach from a process that ended or became another program, and drop its counts."""
        known_attempt = self._attempts.pop(pid, None)
        if known_attempt is not None and known_attempt.links:
            self._release(pid, known_attempt)
        if self._attaching.is_asked(pid):
            self._gone.add(pid)

    @property
    def stuck(self) -> Collection[Pid]:
        """Processes whose library could not be read within a second; a worker is still blocked there."""
        return self._attaching.stuck().keys()

    def _attach(self, pid: Pid) -> Attempt:
        """Find the library and attach all probes; runs in a worker."""
        links: list[BpfLink] = []
        assert self._object is not None
        try:
            with self._libraries.of(pid) as library, _privileged():
                self._tables.enter(pid)
                for function, offset in library.offsets.items():
                    program = self._programs[function]
                    links.append(
                        self._object.attach_user(program, pid=pid, path=library.path, offset=offset)
                    )
        except NoLibrary as error:
            return Attempt(reason=str(error), may_come=True)
        except OSError as error:
            self._release_now(pid, links)
            if error.errno == errno.E2BIG:
                return Attempt(reason="there is no room for one more process")
            return Attempt(reason=f"the kernel refused the probes ({error.strerror})")
        return Attempt(tuple(links))

    def _release(self, pid: Pid, known_attempt: Attempt) -> None:
        self._detaching.ask(pid, lambda: self._release_now(pid, known_attempt.links))

    def _release_now(self, pid: Pid, links: Sequence[BpfLink]) -> None:
        _destroy(links)
        self._tables.remove(pid)

    # --- counts

    def totals(self) -> dict[Pid, int]:
        """Operations of all kinds that each counted process launched since counting began."""
        return {} if self._object is None else self._tables.totals()

    def read(self, pids: Collection[Pid]) -> Counted:
        """All counts of these processes."""
        known = {pid for pid in pids if pid in self._attempts and self._attempts[pid].links}
        return self._tables.read(known) if known else Counted()

    @property
    def lost_count(self) -> int:
        """Communicators and peers that did not fit into the tables, since the start."""
        return 0 if self._object is None else self._tables.lost_count

    def close(self) -> None:
        """Detach all probes.

        The object is left to the kernel until this process ends, because a worker may be blocked in it.
        """
        self._attaching.close()
        self._detaching.close()
        _destroy([link for known in self._attempts.values() for link in known.links])
        self._attempts.clear()


@contextmanager
def _privileged() -> Iterator[None]:
    """Raises CAP_SYS_ADMIN for this thread while it attaches: Linux 6.18 requires it for a user probe."""
    with raised(Capability.PERFMON), raised(Capability.SYS_ADMIN):
        yield


def _destroy(links: Sequence[BpfLink]) -> None:
    """Detach in parallel: the kernel takes a third of a second to release one link, and the same for many."""
    if links:
        with ThreadPoolExecutor(min(len(links), _MOST_DETACHING)) as pool:
            list(pool.map(BpfLink.destroy, links))
