"""Asks a stalled job's own NCCL who holds it up, beside the sensor's loop and never in it.

Only while a job has stalled: a collection visits every process of the job. The questions come a
second apart at first, then ever more rarely. A thread asks; the loop takes what it found.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from kcover_ebpf.facts import SocketSample
from kcover_ebpf.hardware import ras
from kcover_ebpf.hardware.ras import RasCommunicator, RasError, RasRank, RasReport, client
from kcover_ebpf.hardware.ras.client import Patience, Place
from kcover_ebpf.hardware.ras.place import namespace_of, pid_inside
from kcover_ebpf.host import procfs
from kcover_ebpf.host_facts import CollectiveRank, CollectivesSeen
from kcover_ebpf.ids import Pid
from kcover_ebpf.incidents.processes import ProcessView

ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
_FIRST_PAUSES_S = (0.7, 0.7, 1.0, 2.0, 5.0)
_LATER_PAUSE_S = 30.0
_KEPT = 3
"""A count must not have moved in so many answers in a row (two, while there are not more)."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class RasWatch:
    """One job's questions. `tick` never waits."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._inquiry: _Inquiry | None = None

    def tick(self, asks: bool, ranks: Mapping[Pid, ProcessView]) -> list[CollectivesSeen]:
        """What was learned since the last call; `asks`: there is reason to ask now."""
        if not asks:
            self.close()
            return []
        if self._inquiry is None:
            places = find_places(ranks)
            if places:
                self._inquiry = _Inquiry(places, _hosts(ranks), self._patience)
            return []
        return self._inquiry.take()

    def close(self) -> None:
        """Ask no more; a question under way ends by itself and its answer is dropped."""
        if self._inquiry is not None:
            self._inquiry.stop()
            self._inquiry = None


def find_places(ranks: Mapping[Pid, ProcessView]) -> list[Place]:
    """One listener of NCCL's RAS for each network namespace in which ranks of the job have one."""
    members: dict[str, dict[int, Pid]] = defaultdict(dict)
    addresses: dict[str, tuple[tuple[str, int], Pid]] = {}
    for pid, view in ranks.items():
        listener = _listener(view)
        if listener is None:
            continue
        try:
            namespace = namespace_of(pid)
        except OSError:
            continue
        members[namespace][pid_inside(pid)] = pid
        addresses.setdefault(namespace, (listener, pid))
    return [Place(*addresses[name], pids) for name, pids in members.items()]


def _listener(view: ProcessView) -> tuple[str, int] | None:
    environ = view.seen.rank_environ if view.seen is not None else {}
    port = client.port_of(environ.get(ADDRESS_VARIABLE))
    found = [each for each in view.sockets.values() if _listens(each, port)]
    if not found:
        return None
    host, _ = found[0].local
    return _ANY.get(host, host), port


def _listens(sample: SocketSample, port: int) -> bool:
    return sample.state == "LISTEN" and sample.local[1] == port


def _hosts(ranks: Mapping[Pid, ProcessView]) -> frozenset[str]:
    """The addresses of this host that the job uses: so RAS names the hosts of its processes."""
    sockets = (each for view in ranks.values() for each in view.sockets.values())
    return frozenset(each.local[0] for each in sockets)


class _Inquiry:
    """The questions during one suspicion, asked by a thread."""

    def __init__(self, places: Sequence[Place], hosts: Collection[str], patience: Patience) -> None:
        self._places, self._hosts, self._patience = places, hosts, patience
        self._told: queue.SimpleQueue[CollectivesSeen] = queue.SimpleQueue()
        self._stopped = threading.Event()
        threading.Thread(target=self._ask, name="ras", daemon=True).start()

    def take(self) -> list[CollectivesSeen]:
        found = []
        while not self._told.empty():
            found.append(self._told.get_nowait())
        return found

    def stop(self) -> None:
        self._stopped.set()

    def _ask(self) -> None:
        answers: list[tuple[int, RasReport]] = []
        round_count = 0
        while not self._stopped.is_set():
            begun_ns = procfs.boottime_ns()
            try:
                report = _joined([client.ask(place, self._patience) for place in self._places])
            except RasError as error:
                self._tell(CollectivesSeen(begun_ns, begun_ns, trouble=str(error)))
                answers.clear()
            else:
                answers = [*answers[-(_KEPT - 1) :], (begun_ns, report)]
                self._judge(answers)
            pauses = _FIRST_PAUSES_S
            pause_s = pauses[round_count] if round_count < len(pauses) else _LATER_PAUSE_S
            round_count += 1
            self._pause(pause_s, answers)

    def _pause(self, pause_s: float, answers: list[tuple[int, RasReport]]) -> None:
        """Wait; a server that tells events shortens the wait where it tells of a dead process."""
        begun_ns = procfs.boottime_ns()
        if answers and pause_s <= _FIRST_PAUSES_S[-1]:
            dead = client.dead_peers(client.listen(self._places[0], self._patience, pause_s))
            if dead:
                ranks = _ranks_of(dead, answers[-1][1])
                self._tell(self._fact(answers[0][0], missing=ranks, answers=len(answers)))
                return
        waited_s = (procfs.boottime_ns() - begun_ns) / 1e9
        self._stopped.wait(max(0.0, pause_s - waited_s))

    def _judge(self, answers: Sequence[tuple[int, RasReport]]) -> None:
        reading = ras.read([report for _, report in answers])
        if reading is None:
            return
        if reading.moving:
            self._tell(CollectivesSeen(procfs.boottime_ns(), answers[0][0], moving=True))
        elif reading.behind or reading.missing or reading.complete:
            self._tell(
                self._fact(answers[0][0], reading.behind, reading.missing, answers=len(answers))
            )

    def _fact(
        self,
        since_ns: int,
        behind: Sequence[tuple[RasRank, RasCommunicator]] = (),
        missing: Sequence[tuple[RasRank, RasCommunicator]] = (),
        *,
        answers: int,
    ) -> CollectivesSeen:
        return CollectivesSeen(
            procfs.boottime_ns(),
            since_ns,
            answer_count=answers,
            behind=tuple(self._rank(*pair) for pair in behind),
            missing=tuple(self._rank(*pair) for pair in missing),
        )

    def _rank(self, rank: RasRank, comm: RasCommunicator) -> CollectiveRank:
        most = max((each.total for each in comm.ranks if not each.missing), default=0)
        pid = self._here(rank)
        return CollectiveRank(
            rank.rank, comm.size, rank.host, pid, launched=rank.total, most_launched=most
        )

    def _here(self, rank: RasRank) -> Pid | None:
        """The process of this host that is meant; numbers inside pods are alike on all hosts."""
        if rank.host not in self._hosts:
            return None
        found = {place.pids[rank.pid] for place in self._places if rank.pid in place.pids}
        return found.pop() if len(found) == 1 else None

    def _tell(self, fact: CollectivesSeen) -> None:
        if not self._stopped.is_set():
            self._told.put(fact)


def _joined(reports: Sequence[RasReport]) -> RasReport:
    """One report of all namespaces: each server knows the processes that it shares a communicator with."""
    comms: dict[str, RasCommunicator] = {}
    for report in reports:
        for comm in report.communicators:
            known = comms.get(comm.name)
            if known is None or len(comm.counts) > len(known.counts):
                comms[comm.name] = comm
    return RasReport(tuple(comms.values()), all(report.whole for report in reports))


def _ranks_of(
    dead: Collection[tuple[str, int]], report: RasReport
) -> list[tuple[RasRank, RasCommunicator]]:
    pairs = {
        rank.who: (rank, comm)
        for comm in report.communicators
        for rank in comm.ranks
        if (rank.host, rank.pid) in dead
    }
    return list(pairs.values())
