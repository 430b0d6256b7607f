"""Asks the NCCL of a stalled job which rank holds it up, in a thread outside the sensor's loop.

It asks only while a job has stalled, because each request visits every process of the job. Requests start one
second apart and then become rarer. The loop takes the results when they are there.

Any process can answer for all of them, so one asking node is enough. Agents do not talk to each other; each derives
its turn from the numbers of its own ranks (`turn_s`). The node of rank 0 asks immediately. The next nodes ask after
a pause, in case that agent is missing or its ranks have no RAS.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from kcover_ebpf.collectives import ras
from kcover_ebpf.collectives.ras import (
    RasCommunicator,
    RasError,
    RasRank,
    RasReport,
    Reading,
    client,
    said,
)
from kcover_ebpf.collectives.ras.client import RasHere, RasPatience, RasPlace, RasSource
from kcover_ebpf.collectives.ras.netns import namespace_of, pid_inside
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.facts.host import CollectivesSeen
from kcover_ebpf.facts.kernel import SocketSample
from kcover_ebpf.host import procfs
from kcover_ebpf.ids import NS, Pid
from kcover_ebpf.tunables.collectives import RAS_FIRST_PAUSES_S, RAS_LATER_PAUSE_S, RAS_TURN_S

ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
_MOST_TURNS = 4
"""If the first nodes have no RAS, the others will not have it either."""
_KEPT = 3
"""Answers in a row in which a count must not have moved (two, while no more have arrived)."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class RasWatch:
    """The requests for one job. `tick` never waits."""

    def __init__(
        self, patience: RasPatience | None = None, source: RasSource | None = None
    ) -> None:
        """`source`: sends the requests; None: this process does."""
        self._patience, self._source = patience or RasPatience(), source or RasHere()
        self._inquiry: _Inquiry | None = None
        self._last_inquiry: _Inquiry | None = None
        self._since_ns: int | None = None

    def tick(
        self,
        asks: bool,
        ranks: Mapping[Pid, ProcessHistory],
        world_size: int | None = None,
        turn_s: float | None = 0.0,
    ) -> list[CollectivesSeen]:
        """Results since the last call; `asks`: there is a reason to ask now, usually a stall.

        `turn_s`: seconds to wait after the reason first appeared; None: another node asks.
        """
        if not asks:
            self.close()
            return []
        now_ns = procfs.boottime_ns()
        self._since_ns = now_ns if self._since_ns is None else self._since_ns
        if turn_s is None or now_ns - self._since_ns < turn_s * NS:
            return []
        if self._inquiry is None:
            if self._last_inquiry is not None and not self._last_inquiry.has_ended:
                # a job that answers slowly and is suspicious from time to time must not collect
                # threads
                return []
            places = find_places(ranks)
            if places:
                self._inquiry = _Inquiry(
                    self._source, places, _hosts(ranks), self._patience, world_size
                )
            return []
        return self._inquiry.take()

    def close(self) -> None:
        """Stop asking; a request under way ends by itself and its answer is dropped."""
        self._since_ns = None
        if self._inquiry is not None:
            self._inquiry.stop()
            self._last_inquiry, self._inquiry = self._inquiry, None


def find_places(ranks: Mapping[Pid, ProcessHistory]) -> list[RasPlace]:
    """One RAS listener for each network namespace in which ranks of the job have one."""
    members: dict[str, dict[int, Pid]] = defaultdict(dict)
    addresses: dict[str, tuple[tuple[str, int], Pid]] = {}
    for pid, process in ranks.items():
        listener = _listener(process)
        if listener is None:
            continue
        try:
            namespace = namespace_of(pid)
        except OSError:
            continue
        members[namespace][pid_inside(pid)] = pid
        addresses.setdefault(namespace, (listener, pid))
    return [RasPlace(*addresses[name], pids) for name, pids in members.items()]


def _listener(process: ProcessHistory) -> tuple[str, int] | None:
    environ = process.seen.rank_environ if process.seen is not None else {}
    port = client.port_of(environ.get(ADDRESS_VARIABLE))
    found = [socket for socket in process.sockets.values() if _listens(socket, port)]
    if not found:
        return None
    host, _ = found[0].local
    return _ANY.get(host, host), port


def _listens(sample: SocketSample, port: int) -> bool:
    return sample.state == "LISTEN" and sample.local[1] == port


def _hosts(ranks: Mapping[Pid, ProcessHistory]) -> frozenset[str]:
    """Addresses of this host that the job uses, because RAS names hosts by address."""
    sockets = (socket for view in ranks.values() for socket in view.sockets.values())
    return frozenset(socket.local[0] for socket in sockets)


class _Inquiry:
    """The requests during one suspicion, sent by a thread."""

    def __init__(
        self,
        source: RasSource,
        places: Sequence[RasPlace],
        hosts: Collection[str],
        patience: RasPatience,
        world_size: int | None = None,
    ) -> None:
        self._source = source
        self._places, self._hosts, self._patience = places, hosts, patience
        self._world_size, self._unseen, self._failure = world_size, "", ""
        self._answering: list[RasPlace] = []
        self._reported: queue.SimpleQueue[CollectivesSeen] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="ras", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """True once the request that was under way at `stop` has ended."""
        return not self._thread.is_alive()

    def take(self) -> list[CollectivesSeen]:
        found = []
        while not self._reported.empty():
            found.append(self._reported.get_nowait())
        return found

    def stop(self) -> None:
        self._stopped.set()

    def _ask(self) -> None:
        answers: list[tuple[int, RasReport]] = []
        round_count = 0
        while not self._stopped.is_set():
            pauses = RAS_FIRST_PAUSES_S
            pause_s = pauses[round_count] if round_count < len(pauses) else RAS_LATER_PAUSE_S
            round_count += 1
            begun_ns = procfs.boottime_ns()
            try:
                answers = self._round(answers, begun_ns)
                self._pause(pause_s, answers)
                continue
            except RasError as error:
                failure = str(error)
            except Exception as error:  # noqa: BLE001 - what a job answers must not end the asking unseen
                failure = f"query failed: {type(error).__name__}"
            self._publish(CollectivesSeen(begun_ns, begun_ns, trouble=failure))
            answers = []
            self._stopped.wait(pause_s)

    def _round(
        self, answers: list[tuple[int, RasReport]], begun_ns: int
    ) -> list[tuple[int, RasReport]]:
        answering, report = self._answer()
        if answering != self._answering:
            # ranks that other places reported would seem to have moved
            self._answering, answers = answering, []
        answers = [*answers[-(_KEPT - 1) :], (begun_ns, report)]
        reading = ras.read([report for _, report in answers])
        if reading is None:
            return answers
        if reading.moving:
            self._publish(CollectivesSeen(procfs.boottime_ns(), answers[0][0], moving=True))
            # counts from before this movement do not show which rank makes no progress after it
            return answers[-1:]
        named = reading.behind or reading.missing or reading.failed or reading.sides
        if named or reading.complete:
            self._publish(self._fact(answers[0][0], reading, answers=len(answers)))
        elif self._failure:
            self._publish(CollectivesSeen(begun_ns, begun_ns, trouble=self._failure))
        return answers

    def _answer(self) -> tuple[list[RasPlace], RasReport]:
        """The places that answer, and one report of all their answers; raises `RasError` if none does.

        A place that does not answer may hold the rank that is looked for: the others know what it has not launched.
        """
        reports: list[tuple[RasPlace, RasReport]] = []
        self._failure = ""
        for place in self._places:
            try:
                reports.append((place, self._source.ask(place, self._patience)))
            except RasError as error:
                self._failure = str(error)
        if not reports:
            raise RasError(self._failure)
        report = _joined([answer for _, answer in reports])
        self._unseen = _uncovered(report, self._world_size)
        if self._failure and (self._unseen or self._world_size is None):
            report = replace(report, whole=False)  # its ranks may not be equal to those listed
        return [place for place, _ in reports], report

    def _pause(self, pause_s: float, answers: list[tuple[int, RasReport]]) -> None:
        """Wait; an event that reports a dead process ends the wait early."""
        begun_ns = procfs.boottime_ns()
        if answers and pause_s <= RAS_FIRST_PAUSES_S[-1]:
            dead = self._source.dead(self._places[0], self._patience, pause_s)
            if dead:
                ranks = _ranks_of(dead, answers[-1][1])
                reading = Reading(moving=False, missing=tuple(ranks), equal=False)
                self._publish(self._fact(answers[0][0], reading, answers=len(answers)))
                return
        waited_s = (procfs.boottime_ns() - begun_ns) / NS
        self._stopped.wait(max(0.0, pause_s - waited_s))

    def _fact(self, since_ns: int, reading: Reading, *, answers: int) -> CollectivesSeen:
        collectives = said.fact((since_ns, procfs.boottime_ns()), reading, answers, self._here)
        return replace(collectives, unseen=self._unseen)

    def _here(self, rank: RasRank) -> Pid | None:
        """The process on this host that `rank` is; process ids inside pods repeat across hosts."""
        if rank.host not in self._hosts:
            return None
        found = {place.pids[rank.pid] for place in self._places if rank.pid in place.pids}
        return found.pop() if len(found) == 1 else None

    def _publish(self, collectives: CollectivesSeen) -> None:
        if not self._stopped.is_set():
            self._reported.put(collectives)


def _uncovered(report: RasReport, world_size: int | None) -> str:
    """A sentence if the answer does not cover all ranks and lists those that it covers; else empty."""
    count = report.process_count
    if count is None:
        count = len({rank.who for comm in report.communicators for rank in comm.ranks})
    if not report.whole or world_size is None or count >= world_size:
        return ""
    return f"NCCL answered for {count} of {world_size} ranks"


def _joined(reports: Sequence[RasReport]) -> RasReport:
    """One report of all namespaces; each server knows only processes that share a communicator with it."""
    comms: dict[str, RasCommunicator] = {}
    for report in reports:
        for comm in report.communicators:
            known_communicator = comms.get(comm.name)
            if (
                known_communicator is None
                or comm.answered_count > known_communicator.answered_count
            ):
                comms[comm.name] = comm
    counted = [report.process_count for report in reports if report.process_count is not None]
    is_whole = all(report.whole for report in reports)
    return RasReport(tuple(comms.values()), is_whole, max(counted, default=None))


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


def turn_s(numbers: Collection[int | None], world_size: int | None) -> float | None:
    """Seconds from the beginning of a stall until this node asks; None: other nodes ask.

    `numbers`: rank numbers on this node. Without numbers, or if all ranks are here, this node asks, because it
    cannot rely on another.
    """
    known = [number for number in numbers if number is not None]
    if world_size is None or not known or len(known) >= world_size:
        return 0.0
    # nearly every launcher assigns ranks to nodes in blocks
    before = -(-min(known) // len(known))
    return before * RAS_TURN_S if before < _MOST_TURNS else None
