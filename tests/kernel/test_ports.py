"""Links of a network namespace of the test's own, reported by the real kernel."""

import subprocess
import sys

from testbed.skips import ROOT

SCRIPT = """
import subprocess, time
from kcover_ebpf.devices.ports import PortWatch

def ip(words):
    subprocess.run(["ip", *words.split()], check=True)

ip("link add left type veth peer name right")
watch = PortWatch()
for words in (
    "link set left up",
    "link set right up",
    "link set right down",
    "link set right up",
    "link del left",
):
    ip(words)
    time.sleep(0.1)
for change in watch.changes(7):
    if change.port == "left":
        print("up" if change.up else "down", change.text)
"""

FLOOD = """
import subprocess, time
from kcover_ebpf.devices.ports import PortWatch

def ip(lines):
    subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)

for name in "left", "gone", "off":
    ip(f"link add {name} type veth peer name {name}-2\\nlink set {name} up\\nlink set {name}-2 up")
time.sleep(0.5)
watch = PortWatch()
ip("link set lo up\\nlink set lo down\\n" * 2000)
ip("link set left-2 down\\nlink del gone\\nlink set off down")
missing = {"left", "gone", "off"}
changes = watch.changes(7)
assert watch.lost_count > 0
while True:
    for change in changes:
        if change.port in ("left", "gone", "off"):
            print(change.port, "up" if change.up else "down", change.text)
            missing.discard(change.port)
    if not missing:
        break
    time.sleep(0.1)  # the kernel takes up to a second to say that a carrier is gone (net/core/link_watch.c)
    changes = watch.changes(7)
"""


def test_after_more_changes_than_the_kernel_keeps_the_state_is_read() -> None:
    """A port that went down while the queue was full is seen all the same."""
    assert sorted(lines_of(FLOOD)) == [
        "gone down gone",
        "left down lowerlayerdown",
        "off down down, switched off",
    ]


def test_a_cable_that_is_pulled_and_put_back_is_reported_down_and_up() -> None:
    lines = lines_of(SCRIPT)
    assert [line.split()[0] for line in lines] == ["up", "down", "up", "down"]
    assert lines[1] == "down lowerlayerdown"


def lines_of(script: str) -> list[str]:
    """What a program prints in its own network namespace."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
