"""Links of a network namespace of the test's own, told by the real kernel."""

import subprocess
import sys

from tests.skips import ROOT

SCRIPT = """
import subprocess, time
from kcover_ebpf.hardware.ports import PortWatch

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


def test_a_cable_that_is_pulled_and_put_back() -> None:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["up", "down", "up", "down"]
    assert lines[1] == "down lowerlayerdown"
