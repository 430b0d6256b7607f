"""A file system used by the job whose server answers each write after 0.2 s."""

import subprocess
import sys

from bench.lifebench.life import folder

place = folder() / "files"
place.mkdir()
command = [sys.executable, "-m", "testbed.faults.fuse_server", str(place), "slow", "0"]
subprocess.run(command, check=True)
