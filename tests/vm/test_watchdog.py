"""A device node in the place of a library, whose opening alone does harm: a watchdog is armed by open(2).

`softdog` is the kernel's own watchdog in software. Once armed, it resets the machine unless it is fed; here it only
says so (`soft_noboot`).
"""

from __future__ import annotations

import json

from tests.vm.guest import PYTHON, Guest

_DEVICE = "/sys/class/watchdog/watchdog0"
_READ = rf"""
import json, os, stat, subprocess, sys
from pathlib import Path
from kcover_ebpf.agent.reader.started import ConfinedReaders
from kcover_ebpf.host import cgroups
from kcover_ebpf.watching import py_spy

MAPS = '''
import mmap, sys
with open(sys.argv[1], "rb") as file:
    kept = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
print("ready", flush=True)
sys.stdin.read()
'''
numbers = os.makedev(*map(int, Path("{_DEVICE}/dev").read_text().split(":")))
library = Path("/run/libpython3.11.so.1.0")
library.write_bytes(b"\x7fELF" + bytes(4092))
said = []
readers = ConfinedReaders(None, cgroups.own_groups(), said.append)
states = [Path("{_DEVICE}/state").read_text().strip()]
command = [sys.executable, "-c", MAPS, str(library)]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    library.unlink()
    os.mknod(f"{{library}} (deleted)", stat.S_IFCHR | 0o666, numbers)
    for confinement in (readers.spies, py_spy.SPY):
        py_spy.Spies([child.pid], confinement).collect(200.0, {{}})
        states.append(Path("{_DEVICE}/state").read_text().strip())
    child.kill()
readers.close()
print(json.dumps({{"states": states, "refuses": readers.refuses_devices, "said": said}}))
"""


def test_a_watchdog_in_the_place_of_a_library_is_not_armed(guest: Guest) -> None:
    """The last state is the proof that the program does open it where the kernel does not refuse that."""
    guest.shell(f"modprobe softdog soft_noboot=1 soft_margin=600; test -e {_DEVICE}/state")
    (guest.share / "read.py").write_text(_READ)
    found = json.loads(guest.shell(f"{PYTHON} /share/read.py", 900).splitlines()[-1])
    assert found["refuses"], found["said"]
    assert found["states"][:2] == ["inactive", "inactive"]
    assert found["states"][2] == "active" or "did not stop" in guest.shell("dmesg")
