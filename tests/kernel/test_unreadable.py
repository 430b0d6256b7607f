"""A process whose memory lock is really held: whoever reads its command line waits as long as the holder does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.skips import ROOT, skip

SCRIPT = r"""
import json, os, time
from kcover_ebpf.host.identities import Identities
from kcover_ebpf.facts.host import Inspection, InspectRequest, Unreadable
from kcover_ebpf.host.thread_inspector import ThreadInspector
from tests.faults.memory_lock import started

rank, device = started()
identities, inspector = Identities(), ThreadInspector(os.uname().machine)
me, longest, known_of_me, inspected = os.getpid(), 0.0, 0, 0
unreadable = {"identity": 0, "inspection": 0}
for _ in range(24):
    began = time.monotonic()
    facts = list(identities.learn([rank, me], {"RANK"}))
    inspected_now = inspector.inspect([InspectRequest(rank, rank, 0), InspectRequest(me, me, 0)])
    longest = max(longest, time.monotonic() - began)
    known_of_me += any(each.pid == me for each in facts)
    inspected += any(each.pid == me for each in inspected_now if isinstance(each, Inspection))
    unreadable["identity"] += any(isinstance(each, Unreadable) for each in facts)
    unreadable["inspection"] += any(isinstance(each, Unreadable) for each in inspected_now)
    time.sleep(0.1)
print(json.dumps([longest, known_of_me, inspected, unreadable]), flush=True)
os.kill(rank, 9)
os.close(device)  # before we end: our own threads wait for it
os._exit(0)
"""


@pytest.mark.needs("root", "fuse")
def test_a_process_whose_memory_lock_is_held_stops_nobody() -> None:
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    longest_s, known, inspected, unreadable = json.loads(done.stdout)
    if not unreadable["identity"]:
        skip("mmap-lock", "this kernel does not wait in such a mapping")
    assert longest_s < 0.6, "both are waited for once, 0.1 s each"
    assert (known, inspected) == (24, 24)
    # a name is asked for in each pass, until it is known; an inspection is reported once
    assert unreadable["identity"] > 5
    assert unreadable["inspection"] == 1
