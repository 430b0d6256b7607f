"""Jobs whose ranks wait for GPUs: their hosts spin in the driver's library, or nap, and work in between."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis import oneshot
from kcover_ebpf.diagnosis.oneshot_waits import PassHistory
from kcover_ebpf.facts.host import WaitedFile
from kcover_ebpf.ids import NS, Inode, Pid, Tid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.verdict import Cause, VerdictKind
from kcover_ebpf.tunables.diagnosis import LEARNED_GAPS
from tests.unit.support import scripted_job as job
from tests.unit.support.gpu_ranks import SYNCHRONIZE, Gpu
from tests.unit.support.scripted_job import LOCK, Proc, Side, Stage, trained
from tests.unit.support.seen_verdicts import ended, faults

GPU = WaitedFile(7, "device", "/dev/nvidia0", Inode(0), "195:0", "")
KFD = WaitedFile(7, "device", "/dev/kfd", Inode(0), "", "")


def wait_for_device(stage: Stage, proc: Proc) -> None:
    stage.become(proc, "run", module="[vdso]", called_from=SYNCHRONIZE)


@pytest.mark.parametrize(
    ("waits", "passes"),
    [
        (0.5, 0.05),
        pytest.param(0.8, 0.05, marks=pytest.mark.long),
        pytest.param(0.95, 0.25, marks=pytest.mark.long),
    ],
)
def test_device_wait__a_job_that_burns_its_cpus_in_healthy_steps_is_left_alone(
    waits: float, passes: float
) -> None:
    gpu = Gpu(waits=waits)
    suspicious = gpu.spend(45 * 60)
    assert faults(gpu.stage) == []
    assert gpu.stage.job.pace.trained
    assert gpu.stage.job.pace.learned(gpu.stage.job.members.ranks)
    late_passes = suspicious[len(suspicious) // 2 :]
    assert sum(late_passes) < passes * len(late_passes)


def sleep_until_done(stage: Stage, number: int, **changes: object) -> None:
    """As CUDA's host threads do with CU_CTX_SCHED_BLOCKING_SYNC: at a semaphore in a frame of its library."""
    frame = {"argument": job.STACK_POINTER + 0xB0, "stack": SYNCHRONIZE, **changes}
    stage.become(stage.rank(number), "futex", **frame)
    # who waits for it has sent its part
    stage.rank(number).unread = 1 << 20
    for other_number in {0, 1, 2, 3} - {number}:
        stage.become(stage.rank(other_number), "futex", stack=job.COLLECTIVE)


def test_device_wait__a_rank_that_sleeps_until_its_device_is_done_is_not_named_or_ended() -> None:
    stage = trained()
    began_s = stage.now_ns / NS
    sleep_until_done(stage, 1)
    stage.run(120)
    found = faults(stage, began_s)
    assert [(verdict.cause, verdict.culprit) for verdict in found] == [(Cause.DEVICE_WAIT, None)]
    assert not any(map(ended, found))


def test_device_wait__a_rank_that_yields_until_its_device_is_done_is_not_named_or_ended() -> None:
    """As with CU_CTX_SCHED_YIELD: its calls are those of MPI, and its stack could not be read yet."""
    stage = trained()
    for proc in stage.procs.values():
        stage.become(proc, "run")
    stage.run(5)
    began_s = stage.now_ns / NS
    for number in (0, 2, 3):
        stage.become(stage.rank(number), "futex", stack=job.COLLECTIVE)
    stage.become(stage.rank(1), "yield", module="libc.so.6", called_from=(), unread=1 << 20)
    stage.run(90)
    found = faults(stage, began_s)
    assert [(verdict.cause, verdict.culprit) for verdict in found] == [(Cause.DEVICE_WAIT, None)]
    assert not any(map(ended, found))


def test_device_wait__a_rank_that_does_not_read_while_its_device_works_is_not_named_or_ended() -> (
    None
):
    gpu = Gpu(world=2)
    stage = gpu.stage
    stage.connected = True
    gpu.spend(180)
    began_s = stage.now_ns / NS
    gpu.stuck = {1}
    gpu.left_alone = {0}
    stage.become(stage.rank(0), "futex", stack=job.COLLECTIVE, unsent=1 << 20)
    gpu.spend(90)
    found = faults(stage, began_s)
    assert [(verdict.cause, verdict.culprit) for verdict in found] == [(Cause.DEVICE_WAIT, None)]
    assert not any(map(ended, found))


@pytest.mark.parametrize(
    "changes",
    [{"argument": job.STACK_POINTER + 0x2000}, {"stack": LOCK}],
    ids=["elsewhere", "a lock"],
)
def test_device_wait__another_semaphore_is_not_the_drivers(changes: dict[str, object]) -> None:
    stage = trained()
    sleep_until_done(stage, 1, **changes)
    stage.run(10)
    assert stage.job.snapshot().processes[Pid(101)].state is State.FUTEX


@pytest.mark.parametrize(
    ("stack", "found"), [(SYNCHRONIZE, (Cause.DEVICE_WAIT, None)), (LOCK, (Cause.BLOCKED_LOCK, 1))]
)
def test_device_wait__a_rank_waits_for_its_device_if_its_other_thread_sleeps_until_that_is_done(
    stack: tuple[str, ...], found: tuple[Cause, int | None]
) -> None:
    """As where autograd's thread runs the backward pass, for which the lead waits where it never did before."""
    stage = trained()
    sleep_until_done(stage, 1, argument=3, stack=LOCK)
    stage.rank(1).sides = {101_000: Side("futex", stack=stack)}
    stage.run(90)
    named = [(fault.cause, fault.culprit and fault.culprit.rank) for fault in faults(stage)]
    assert named == [found]


def hang(gpu: Gpu, culprit: int, mode: str, **changes: object) -> float:
    began_s = gpu.stage.now_ns / NS
    gpu.stuck = set(range(gpu.stage.world)) - {culprit}
    gpu.stage.become(gpu.stage.rank(culprit), mode, **changes)
    return began_s


CULPRITS: dict[str, tuple[str, dict[str, object], Cause]] = {
    "a lock": ("futex", {"stack": LOCK}, Cause.BLOCKED_LOCK),
    "a sleep of hours": ("sleep_long", {"deadline_ns": 1 << 60}, Cause.BLOCKED_SLEEP),
    "a loop in place": ("spin", {}, Cause.SPINNING),
}


@pytest.mark.parametrize("what", CULPRITS)
def test_device_wait__the_rank_that_is_elsewhere_is_named(what: str) -> None:
    mode, changes, cause = CULPRITS[what]
    gpu = Gpu()
    gpu.spend(180)
    began_s = hang(gpu, 3, mode, **changes)
    if mode == "spin":
        # the loop is in the interpreter, in every pass
        gpu.stage.rank(3).rank = 3
        place = gpu._place
        gpu._place = lambda proc: place(proc) if proc.rank != 3 else None  # type: ignore[method-assign]
        gpu.stage.rank(3).module = "python3.11"
    gpu.spend(120)
    found = faults(gpu.stage, began_s)
    assert {(verdict.culprit.rank, verdict.cause) for verdict in found if verdict.culprit} == {
        (3, cause)
    }
    assert all(verdict.culprit for verdict in found)
    assert found[0].time_s - began_s < 60


def test_device_wait__a_rank_that_computes_while_all_others_wait_is_work_and_named_in_words() -> (
    None
):
    gpu = Gpu()
    gpu.spend(180)
    gpu.stuck = set(range(8)) - {3}
    gpu.waits = 0.0
    gpu.spend(50)
    assert faults(gpu.stage) == []
    verdict = gpu.stage.tracker.current
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (VerdictKind.WORKING, Cause.COMPUTING)
    assert verdict.evidence[0].text.startswith("rank 3 is computing")


def test_device_wait__no_rank_is_named_and_nothing_is_ended_when_all_wait_for_their_devices() -> (
    None
):
    gpu = Gpu()
    gpu.spend(180)
    began_s = gpu.stage.now_ns / NS
    gpu.stuck = set(range(8))
    gpu.spend(600)
    assert gpu.states() == {State.ON_DEVICE}
    found = faults(gpu.stage, began_s)
    assert [(verdict.cause, verdict.culprit) for verdict in found] == [(Cause.DEVICE_WAIT, None)]
    latest = gpu.stage.tracker.latest
    assert latest is not None
    assert not ended(latest)


def test_device_wait__a_first_step_of_minutes_is_no_fault() -> None:
    gpu = Gpu()
    gpu.spend(3)
    gpu.stuck = set(range(8))
    gpu.spend(180)
    assert faults(gpu.stage) == []


def test_device_wait__what_was_learned_before_a_job_trained_makes_no_first_step_a_fault() -> None:
    """Gaps of a start are those of imports and compilers, which a long first step follows."""
    gpu = Gpu(world=1)
    stage = gpu.stage
    stage.become(stage.rank(0), "train")
    stage.run(LEARNED_GAPS + 2)
    assert not stage.job.pace.trained
    stage.become(stage.rank(0), "run")
    gpu.stuck = {0}
    gpu.spend(50)
    assert faults(gpu.stage) == []


def test_device_wait__an_evaluation_on_rank_0_is_no_fault_of_the_others() -> None:
    """They wait in a barrier by futex, where none ever waited before; its host waits for the device."""
    gpu = Gpu()
    gpu.spend(180)
    gpu.stuck = {0}
    for rank in range(1, 8):
        gpu.stage.become(gpu.stage.rank(rank), "futex", stack=LOCK)
    gpu.spend(300)
    assert [fault.culprit for fault in faults(gpu.stage)] in ([], [None])
    assert not any(map(ended, faults(gpu.stage)))


def sides(proc: Proc, mode: str) -> None:
    proc.sides = {proc.pid + 50_000: Side(mode, "libc.so.6", ("libc.so.6+1", "libnccl.so.2+2"))}
    proc.side_cpu = float(mode == "yield")


@pytest.mark.long  # half an hour of eight ranks; an evaluation of two minutes is below
def test_device_wait__a_network_thread_that_spins_is_no_work_and_an_idle_one_shows_who_has_not_joined() -> (
    None
):
    gpu = Gpu()
    for proc in gpu.stage.procs.values():
        sides(proc, "yield")
    gpu.spend(180)
    # a moment of suspicion, in which the threads are watched closely
    gpu.stage.job.examine()
    gpu.spend(3)
    began_s = gpu.stage.now_ns / NS
    gpu.stuck = set(range(8))
    sides(gpu.stage.rank(5), "futex")
    gpu.spend(1900)
    # its own device may be at work for as long as any evaluation takes
    found = [
        verdict for verdict in gpu.stage.verdicts if verdict.time_s > began_s and verdict.culprit
    ]
    assert [
        (verdict.kind, verdict.cause, verdict.culprit and verdict.culprit.rank) for verdict in found
    ] == [
        (VerdictKind.UNKNOWN, Cause.NOT_IN_COLLECTIVE, 5),
        (VerdictKind.HUNG, Cause.NOT_IN_COLLECTIVE, 5),
    ]
    assert found[0].time_s - began_s < 60
    assert found[1].time_s - began_s > 1800


def test_device_wait__an_evaluation_on_the_device_of_one_rank_ends_nothing() -> None:
    """Its network thread is idle and those of the others spin: they have launched what it will join later."""
    gpu = Gpu()
    for proc in gpu.stage.procs.values():
        sides(proc, "yield")
    gpu.spend(180)
    gpu.stage.job.examine()
    gpu.spend(3)
    gpu.stuck = set(range(8))
    sides(gpu.stage.rank(0), "futex")
    for _ in range(120):
        gpu.spend(1)
        latest = gpu.stage.tracker.latest
        assert latest is None or not ended(latest)


def test_device_wait__a_rank_that_sleeps_for_milliseconds_waits() -> None:
    stage = Stage(world=8)
    stage.run(60)
    began_s = stage.now_ns / NS
    for rank in range(8):
        stage.become(stage.rank(rank), "nap", naps_per_s=300)
    stage.become(stage.rank(3), "futex", stack=LOCK)
    stage.run(60)
    found = faults(stage, began_s)
    assert [(verdict.cause, verdict.culprit and verdict.culprit.rank) for verdict in found] == [
        (Cause.BLOCKED_LOCK, 3)
    ]


def test_device_wait__a_sleep_that_is_no_nap_is_still_an_effort() -> None:
    stage = Stage(world=8)
    stage.run(60)
    for rank in range(1, 8):
        stage.become(stage.rank(rank), "futex")
    stage.become(stage.rank(0), "sleep")
    stage.run(60)
    assert faults(stage) == []


def test_device_wait__a_sleep_in_the_driver_of_a_device_is_a_wait_for_the_device() -> None:
    stage = Stage(world=8)
    stage.run(30)
    for rank in range(8):
        stage.become(stage.rank(rank), "ioctl", files=(KFD,), wait_channel="kfd_wait_on_events")
    stage.run(4)
    assert faults(stage) == []
    began_s = stage.now_ns / NS
    stage.become(stage.rank(3), "futex", stack=LOCK)
    stage.run(60)
    found = faults(stage, began_s)
    assert {(verdict.cause, verdict.culprit and verdict.culprit.rank) for verdict in found} == {
        (Cause.BLOCKED_LOCK, 3)
    }


def concluded(*, moving: bool) -> tuple[VerdictKind, Cause]:
    """What `trace` says after some seconds."""
    gpu, history = Gpu(), PassHistory()
    gpu.stage.job.pace.unlearned_s = 3.0
    gpu.waits = 0.8 if moving else 1.0
    for _ in gpu.run(12):
        gpu.stage.job.examine()
        history.note(gpu.stage.job)
    found = oneshot.conclusion(gpu.stage.job, history)
    assert found is not None
    return found.kind, found.cause


def test_conclusion__a_trace_that_sees_nothing_but_waits_for_devices_does_not_say_healthy() -> None:
    assert concluded(moving=False) == (VerdictKind.UNKNOWN, Cause.DEVICE_WAIT)
    assert concluded(moving=True)[0] is VerdictKind.WORKING


class Actor:
    """Ranks that train in a thread beside the first one, which waits for it in one futex."""

    def __init__(self, world: int = 4) -> None:
        self.stage = Stage(world=world, connected=False)
        for proc in self.stage.procs.values():
            self.stage.become(proc, "futex")
            proc.side_cpu = 1.0

    def run(self, seconds: float, stuck: int | None = None) -> None:
        for second in range(int(seconds)):
            for proc in self.stage.procs.values():
                waits = second % 3 == 0 or stuck is not None
                module = "libcuda.so.1" if waits else "python3.11"
                mode = "futex" if proc.rank == stuck else "spin"
                proc.sides = {proc.pid + 50_000: Side(mode, module)}
                proc.side_cpu = float(mode == "spin")
            self.stage.run(1)


def test_device_wait__a_job_that_trains_in_threads_beside_the_first_ones_is_left_alone() -> None:
    actor = Actor()
    actor.run(45 * 60)
    assert faults(actor.stage) == []
    leads = [view.lead for view in actor.stage.job.members.ranks.values()]
    assert {lead.sample.tid - lead.sample.pid for lead in leads if lead} == {50_000}


def test_device_wait__a_first_thread_that_continues_represents_its_process_again() -> None:
    actor = Actor(world=1)
    actor.run(120)
    (view,) = actor.stage.job.members.ranks.values()
    proc = actor.stage.rank(0)
    proc.sides = {proc.pid + 50_000: Side("futex")}
    actor.stage.become(proc, "train")
    actor.stage.run(3)
    assert view.lead is view.threads[Tid(view.pid)]


def test_device_wait__a_poll_on_a_device_is_no_wait_for_an_idle_loader() -> None:
    stage = Stage(world=4)
    for rank in range(4):
        stage.add(Proc(500 + rank, ppid=100 + rank, mode="futex", stack=LOCK, timed=True))
    stage.run(60)
    began_s = stage.now_ns / NS
    for rank in range(4):
        stage.become(stage.rank(rank), "poll", files=(GPU,), stack=SYNCHRONIZE)
    stage.run(90)
    found = faults(stage, began_s)
    assert [(verdict.cause, verdict.culprit) for verdict in found] == [(Cause.DEVICE_WAIT, None)]
    assert not any(ended(verdict) for verdict in found)


@pytest.mark.parametrize("others", ["run", "nap"])
@pytest.mark.parametrize("period_s", [1, 480])
def test_device_wait__a_watchdog_of_every_rank_releases_no_lock(period_s: int, others: str) -> None:
    stage = trained(seconds=60)
    for proc in stage.procs.values():
        proc.sides = {proc.pid + 50_000: Side("timed", period_ns=period_s * NS)}
    stage.run(60)
    for number in range(4):
        mode, stack = (others, job.COLLECTIVE) if number else ("futex", LOCK)
        stage.become(stage.rank(number), mode, module="libcuda.so.1", stack=stack, naps_per_s=400)
    stage.run(30)
    verdict = faults(stage)[-1]
    assert (verdict.kind, verdict.culprit and verdict.culprit.rank) == (VerdictKind.HUNG, 0)
