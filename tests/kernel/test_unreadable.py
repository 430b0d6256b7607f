"""A process whose memory lock is really held: whoever reads its command line waits as long as the holder does."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.skips import ROOT, skip

SCRIPT = r"""
import ctypes, json, os, struct, sys, tempfile, threading, time
from kcover_ebpf.host.identities import Identities
from kcover_ebpf.facts.host import Inspection, InspectRequest, Unreadable
from kcover_ebpf.host.thread_inspector import ThreadInspector
from tools.faultbench import fuse_server as fuse

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
point = tempfile.mkdtemp()
opened = []
KEEP_CACHE = 2  # or an open would wait for the locked page
known = fuse.control

def control(operation, node):
    if operation == fuse.OPEN:
        opened.append(node)
        direct = 0 if len(opened) == 1 else fuse.DIRECT_IO
        return 0, struct.pack("<Q2I", 1, direct | KEEP_CACHE, 0)
    return known(operation, node)

fuse.control = control
device = fuse.mount(point)
threading.Thread(target=fuse.serve, args=(device, False), daemon=True).start()
ready, tell = os.pipe()
rank = os.fork()
if rank == 0:
    os.close(device)  # with the last of these the file system goes, and whoever waits for it goes on
    # one thread reads through the page cache: storage never answers, and the page stays locked. Another maps the
    # file past the cache: the kernel waits for that page, with the memory lock of the process held.
    cached = os.open(point + "/data", os.O_RDONLY)
    threading.Thread(target=os.read, args=(cached, 4096), daemon=True).start()
    time.sleep(0.3)
    direct = os.open(point + "/data", os.O_RDONLY)
    os.write(tell, b"x")
    libc.mmap(None, ctypes.c_size_t(4096), 1, 2, direct, 0)
    os._exit(0)
os.read(ready, 1)
time.sleep(0.5)
identities, inspector = Identities(), ThreadInspector(os.uname().machine)
me, longest, known_of_me, inspected = os.getpid(), 0.0, 0, 0
unreadable = {"identity": 0, "inspection": 0}
for _ in range(24):
    began = time.monotonic()
    facts = list(identities.learn([rank, me], {"RANK"}))
    looks = inspector.look([InspectRequest(rank, rank, 0), InspectRequest(me, me, 0)])
    longest = max(longest, time.monotonic() - began)
    known_of_me += any(each.pid == me for each in facts)
    inspected += any(each.pid == me for each in looks if isinstance(each, Inspection))
    unreadable["identity"] += any(isinstance(each, Unreadable) for each in facts)
    unreadable["inspection"] += any(isinstance(each, Unreadable) for each in looks)
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
