"""The faults, one line each, in the order of the list of 45."""

from __future__ import annotations

from bench.faultbench.scenario import (
    ALL,
    BLOCKED,
    CRASHED,
    HUNG,
    LOST,
    SLOW,
    SOCKETS,
    UNKNOWN,
    Culprit,
    Effect,
    Scenario,
)

DIED = frozenset({Effect.DIED})
DIED_OR_STALLED = frozenset({Effect.DIED, Effect.STALLED})
SLOWED = frozenset({Effect.SLOWED})
SLOWED_OR_STALLED = frozenset({Effect.SLOWED, Effect.STALLED})
LOADER = frozenset({"loader_stuck"})
LINK = frozenset({"link", "peer_gone"})
STORAGE = frozenset({"storage"})
DEADLOCK = frozenset({"DEADLOCK"})
MISMATCH = frozenset({"collective_mismatch", "wait_cycle"})
LIMITED = frozenset({"cpu_throttled"})
STRAGGLER = frozenset({"slow_rank", "cpu_throttled"})


def causes(*names: str) -> frozenset[str]:
    """The causes that count as right."""
    return frozenset(names)


# A table, one scenario a paragraph.
# fmt: off
DEATHS = (
    Scenario("01-kill", "1", "rank killed by SIGKILL", CRASHED, causes("killed"), DIED_OR_STALLED,
             host="kill", frameworks=ALL),
    Scenario("01-launcher", "1", "rank killed by its own launcher", CRASHED, causes("killed"),
             DIED_OR_STALLED, host="kill-by-launcher"),
    Scenario("02-exit-1", "2", "rank exits with code 1", CRASHED, causes("exited"),
             DIED_OR_STALLED, inject="exit-one", frameworks=ALL),
    Scenario("03-segfault", "3", "segmentation fault", CRASHED, causes("segfault"),
             DIED_OR_STALLED, inject="segfault", frameworks=ALL, held_out=True),
    Scenario("03-abort", "3", "abort", CRASHED, causes("aborted"), DIED_OR_STALLED,
             inject="abort", frameworks=ALL),
    Scenario("04-oom", "4", "rank killed by its memory limit", CRASHED, causes("oom_killed"),
             DIED_OR_STALLED, inject="oom", arm="limit-rank-memory", frameworks=ALL),
    Scenario("05-worker-oom", "5", "loader worker killed by its memory limit", CRASHED | HUNG,
             causes("oom_killed", "loader_died"), DIED_OR_STALLED, inject="worker-oom",
             arm="limit-worker-memory"),
)
STOPS = (
    Scenario("06-stop", "6", "SIGSTOP of one rank", HUNG, causes("stopped"), host="stop",
             frameworks=ALL),
    Scenario("07-worker-stop", "7", "SIGSTOP of one rank's loader worker", HUNG,
             causes("stopped") | LOADER, inject="worker-stopped", held_out=True),
    Scenario("07-spawned-stop", "7", "SIGSTOP of one rank's loader worker, which was spawned", HUNG,
             causes("stopped") | LOADER, inject="worker-spawned-stopped"),
    Scenario("08-freezer-v1", "8", "one rank frozen, cgroup v1 freezer", HUNG, causes("frozen"),
             host="freeze-v1", frameworks=ALL),
    Scenario("08-freezer-v2", "8", "one rank frozen, cgroup.freeze", HUNG, causes("frozen"),
             host="freeze-v2", held_out=True),
    Scenario("09-quota", "9", "one rank limited to 1% of a processor", SLOW | HUNG, LIMITED,
             SLOWED_OR_STALLED, host="quota-1", frameworks=ALL),
)
CODE = (
    Scenario("10-sleep", "10", "rank sleeps instead of joining", HUNG, BLOCKED, inject="sleep",
             frameworks=ALL),
    Scenario("10-left-early", "10", "rank leaves early with code 0", HUNG | CRASHED,
             causes("left_early", "exited"), DIED_OR_STALLED, inject="exit-zero", frameworks=ALL),
    Scenario("10-child", "10", "rank waits for a program that never ends, its peers poll in"
             " sleeps of 2 ms", HUNG, LOADER | BLOCKED, inject="child-wait",
             frameworks=("mpi",)),
    Scenario("11-loop-python", "11", "endless loop in Python", HUNG, causes("spinning",
             "computing"), inject="loop-python", frameworks=ALL),
    Scenario("11-loop-native", "11", "endless loop in native code", HUNG | UNKNOWN,
             causes("spinning", "computing"), inject="loop-native", frameworks=ALL,
             held_out=True),
    Scenario("11-loop-heartbeats", "11", "endless loop in Python next to threads with heartbeats",
             HUNG, causes("spinning", "computing"), inject="loop-heartbeats", prepare="name",
             frameworks=("torch", "mpi"), held_out=True),
    Scenario("12-crossed", "12", "collectives of two groups in crossed order", DEADLOCK | HUNG,
             MISMATCH, inject="crossed", culprit=Culprit.OPTIONAL, frameworks=("torch", "mpi")),
    Scenario("12-barrier", "12", "one rank in a barrier, others in allreduce",
             DEADLOCK | HUNG | CRASHED, MISMATCH, DIED_OR_STALLED, inject="barrier",
             culprit=Culprit.OPTIONAL),
    Scenario("13-sizes", "13", "collective called with another size", DEADLOCK | HUNG | CRASHED,
             MISMATCH, DIED_OR_STALLED, inject="sizes", culprit=Culprit.OPTIONAL),
    Scenario("13-skip-loss", "13", "one small collective left out, other sizes follow",
             DEADLOCK | HUNG | CRASHED, MISMATCH, DIED_OR_STALLED, inject="skip-loss"),
    Scenario("13-skip-step", "13", "one step's collectives left out, sizes equal until the end",
             DEADLOCK | HUNG | CRASHED, MISMATCH | causes("left_early"), DIED_OR_STALLED,
             inject="skip-step", frameworks=ALL),
    Scenario("14-gil", "14", "interpreter lock held in a C call", HUNG, BLOCKED,
             inject="interpreter-lock", frameworks=ALL),
    Scenario("15-two-locks", "15", "two threads of a rank take two locks crosswise",
             HUNG | DEADLOCK, BLOCKED, inject="deadlock-threads", frameworks=ALL),
    Scenario("15-reader", "15", "a thread that should read is stuck, its rank waits on a queue",
             HUNG, BLOCKED, inject="stuck-reader", prepare="name", held_out=True),
    Scenario("16-fork-lock", "16", "loader worker forked with a taken lock", HUNG,
             LOADER | causes("blocked_lock"), inject="fork-with-lock"),
)
LOADERS = (
    Scenario("17-worker-sleep", "17", "loader worker sleeps for ever", HUNG, LOADER,
             inject="worker-sleep"),
    Scenario("17-worker-loop", "17", "loader worker loops for ever", HUNG,
             LOADER | causes("spinning"), inject="worker-loop", held_out=True),
    Scenario("18-worker-fifo", "18", "loader worker reads a FIFO without a writer", HUNG,
             LOADER | STORAGE | causes("blocked_read"), inject="worker-read", prepare="fifo"),
    Scenario("19-worker-killed", "19", "loader worker killed", CRASHED | HUNG,
             causes("loader_died", "killed", "exited"), DIED_OR_STALLED, inject="worker-killed"),
)
STORAGES = (
    Scenario("20-fuse-rank", "20", "rank reads from a file server without answers", HUNG,
             STORAGE | causes("blocked_read"), inject="read-path", prepare="fuse-hung",
             frameworks=ALL),
    Scenario("20-fuse-worker", "20", "loader worker reads from a file server without answers",
             HUNG, LOADER | STORAGE, inject="worker-read", prepare="fuse-hung", held_out=True),
    Scenario("21-frozen-fs", "21", "checkpoint to a suspended file system", HUNG, STORAGE,
             inject="write-path", prepare="ext4-frozen", frameworks=("torch", "mpi")),
    Scenario("22-disk-full", "22", "disk full during a checkpoint", CRASHED, causes("exited"),
             DIED_OR_STALLED, inject="write-path", prepare="ext4-full"),
)
NETWORKS = (
    Scenario("23-drop-in", "23", "packets to one rank dropped", LOST, LINK, host="drop-in",
             netns=True, frameworks=SOCKETS),
    Scenario("23-drop-out", "23", "packets from one rank dropped", LOST, LINK, host="drop-out",
             netns=True, held_out=True),
    Scenario("24-drop-both", "24", "packets to and from one rank dropped", LOST, LINK,
             host="drop-both", netns=True, frameworks=SOCKETS),
    Scenario("24-drop-ports", "24", "one rank's connections dropped on the loopback", LOST, LINK,
             host="drop-ports", netns=True, frameworks=("mpi",)),
    Scenario("25-one-edge", "25", "one edge of the ring cut", LOST, LINK, host="drop-edge",
             culprit=Culprit.EITHER_END, netns=True),
    Scenario("26-loss-20", "26", "20% of the packets to one rank lost", SLOW | LOST,
             LINK | STRAGGLER, SLOWED, host="loss-20", culprit=Culprit.OPTIONAL, netns=True,
             may_shut_down=False, steps_s=(0.2,)),
    Scenario("26-rate", "26", "one rank's link limited to 1 Mbit/s", SLOW | LOST,
             LINK | STRAGGLER, SLOWED, host="rate-1mbit", culprit=Culprit.OPTIONAL, netns=True,
             may_shut_down=False, steps_s=(0.2,)),
    Scenario("27-flap", "27", "link down for 5 s", LOST, LINK,
             SLOWED_OR_STALLED | {Effect.UNAFFECTED}, host="flap-5", netns=True,
             may_shut_down=False, held_out=True),
    Scenario("28-vanished", "28", "rank and its link vanish together, no FIN is sent",
             CRASHED | LOST, LINK | causes("killed"), DIED_OR_STALLED, host="vanish", netns=True,
             frameworks=SOCKETS),
    Scenario("28-link-gone", "28", "one rank's link removed", LOST, LINK, host="remove-link",
             netns=True),
    Scenario("29-window", "29", "one rank stops reading a connection, its window closes",
             HUNG | DEADLOCK, BLOCKED | causes("wait_cycle", "peer_gone"), inject="closed-window",
             prepare="name"),
)
OTHERS = (
    Scenario("32-absent", "32", "one rank is never started", HUNG, causes("missing_rank"),
             absent=True, frameworks=SOCKETS),
    Scenario("34-swap", "34", "one rank swaps", SLOW | HUNG, causes("memory_pressure"),
             SLOWED_OR_STALLED | {Effect.UNAFFECTED}, inject="swap-storm", prepare="swap",
             arm="limit-with-swap", may_shut_down=False, steps_s=(0.2,)),
    Scenario("42-restart-then-stop", "42", "sensor killed, started again, then a rank stops",
             HUNG, causes("stopped"), host="restart-sensor-then-stop", needs_sensor=True),
    Scenario("43-two-jobs", "43", "two jobs, one hangs: only that one may end", HUNG, BLOCKED,
             inject="deadlock-threads", bystander=True),
    Scenario("44-first-lock", "44", "hang in the first step: lock", HUNG, BLOCKED,
             inject="deadlock-threads", at_first_step=True, frameworks=ALL),
    Scenario("44-first-loop", "44", "hang in the first step: loop", HUNG, causes("spinning",
             "computing"), inject="loop-python", at_first_step=True, held_out=True),
    Scenario("45-slow-1.3", "45", "one rank 1.3 times slower", SLOW, STRAGGLER, SLOWED,
             inject="slow", factor=1.3, may_shut_down=False, frameworks=ALL),
    Scenario("45-slow-2", "45", "one rank twice as slow", SLOW, STRAGGLER, SLOWED, inject="slow",
             factor=2.0, may_shut_down=False, frameworks=ALL, held_out=True),
    Scenario("45-slow-5", "45", "one rank five times slower", SLOW, STRAGGLER, SLOWED,
             inject="slow", factor=5.0, may_shut_down=False, frameworks=ALL),
)
FAULTS = (*DEATHS, *STOPS, *CODE, *LOADERS, *STORAGES, *NETWORKS, *OTHERS)
