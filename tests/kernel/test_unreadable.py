"""A process whose memory lock is really taken: whoever reads its command line waits as long as the holder does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from testbed.skips import ROOT, skip

SCRIPT = r"""
import json, os, time
from kcover_ebpf.host.identities import Identities
from kcover_ebpf.facts.host import ThreadReading, ReadingRequest, Unreadable
from kcover_ebpf.host.thread_reader import ThreadReader, ThreadReadings
from testbed.faults.memory_lock import started

rank, device = started()
identities, reader = Identities(), ThreadReader(ThreadReadings(os.uname().machine))
me, longest, known_of_me, read = os.getpid(), 0.0, 0, 0
unreadable = {"identity": 0, "reading": 0}
for _ in range(24):
    began = time.monotonic()
    facts = list(identities.learn([rank, me], {"RANK"}))
    facts_now = reader.read([ReadingRequest(rank, rank, 0), ReadingRequest(me, me, 0)])
    longest = max(longest, time.monotonic() - began)
    known_of_me += any(each.pid == me for each in facts)
    read += any(each.pid == me for each in facts_now if isinstance(each, ThreadReading))
    unreadable["identity"] += any(isinstance(each, Unreadable) for each in facts)
    unreadable["reading"] += any(isinstance(each, Unreadable) for each in facts_now)
    time.sleep(0.1)
print(json.dumps([longest, known_of_me, read, unreadable]), flush=True)
os.kill(rank, 9)
os.close(device)  # before we end: our own threads wait for it
os._exit(0)
"""


@pytest.mark.needs("root", "fuse")
def test_a_process_whose_memory_lock_is_taken_stops_no_other_process() -> None:
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    longest_s, known, read, unreadable = json.loads(done.stdout)
    if not unreadable["identity"]:
        skip("mmap-lock", "this kernel does not wait in such a mapping")
    assert longest_s < 3.0, (
        "both are waited for once, 0.1 s each, and not for as long as it is held"
    )
    assert min(known, read) >= 12, "of 24: now and then a reader comes too late on a busy machine"
    # a name is asked for in each pass, until it is known; a reading is reported once
    assert unreadable["identity"] > 5
    assert unreadable["reading"] == 1
