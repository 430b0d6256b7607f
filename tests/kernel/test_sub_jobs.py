"""Two jobs of real ranks below one launcher: a hang in one names that one, and does not end the other."""

import signal
from pathlib import Path

import pytest

from testbed.ports import free_ports
from tests.kernel.command import PYTHON, is_alive, run
from tests.waiting import until

pytestmark = pytest.mark.needs("cgroup2")

RANK = """\
import os, socket, sys, threading, time
rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
job = sys.argv[1]
def connected():
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.05)
if rank == 0:
    server = socket.create_server(("127.0.0.1", port))
    peers = [server.accept()[0] for _ in range(world - 1)]
else:
    peers = [connected()]
def reduce():
    for peer in peers:
        peer.sendall(bytes(4096))
    for peer in peers:
        left = 4096
        while left:
            left -= len(peer.recv(left)) or sys.exit(1)
lock = threading.Lock()
for step in range(10000):
    time.sleep(0.2)
    reduce()
    open(f"steps-{job}-{rank}", "w").write(str(step))
    if rank == 1 and os.path.exists(f"hang-{job}"):
        lock.acquire()
        lock.acquire()
"""

JOB = """\
import os, subprocess, sys
def rank(job, number):
    place = {"RANK": str(number), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    place["MASTER_PORT"] = str(int(sys.argv[1]) + job)
    return subprocess.Popen([sys.executable, "rank.py", str(job)], env={**os.environ, **place})
ranks = [rank(job, number) for job in range(2) for number in range(3)]
sys.exit(max(abs(each.wait()) for each in ranks))
"""


def steps(folder: Path, job: int) -> int:
    path = folder / f"steps-{job}-1"
    return int(path.read_text() or 0) if path.exists() else 0


def test_sub_jobs__a_hang_in_one_is_named_and_does_not_end_the_other(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "job.py").write_text(JOB)
    port = free_ports(2)
    policy = tmp_path / "policy.toml"
    # it would be ended 10 s after the hang, were it alone
    policy.write_text('act_floor = "10s"\nact_cap = "10s"\n')
    arguments = ("--act", "shutdown", "--policy", str(policy), "-o", "json")
    with run(*arguments, "--", PYTHON, "job.py", str(port), folder=tmp_path) as one:
        until(lambda: min(steps(tmp_path, 0), steps(tmp_path, 1)) > 75, "the training")
        (tmp_path / "hang-1").touch()
        one.await_verdict("blocked_lock")
        reached = steps(tmp_path, 0)
        until(lambda: steps(tmp_path, 0) > reached + 75, "the other to go on")
        assert len([pid for pid in one.members() if is_alive(pid)]) >= 6
        one.send(signal.SIGTERM)
        one.reap()
    verdicts = [event for event in one.events() if event["event"] == "verdict"]
    kinds = [(event["verdict"], event["cause"]) for event in verdicts]
    assert "HUNG" in [kind for kind, _ in kinds], kinds
    hang = next(event for event in verdicts if event["verdict"] == "HUNG")
    assert (hang["culprit"]["rank"], hang["victims"]) == (1, [0, 2])
    assert (hang["certainty"], hang["acts_at"]) == ("suspected", None)
    (apart,) = (found["text"] for found in hang["evidence"] if found["kind"] == "apart")
    assert f"port {port + 1}" in apart.partition("; ")[0]
    assert f"port {port}" in apart.partition("; ")[2]
