"""A file system used by the job whose server answers an fsync after 14 s."""

import subprocess
import sys

from bench.lifebench.life import folder

place = folder() / "files"
place.mkdir()
command = [sys.executable, "-m", "testbed.faults.fuse_server", str(place), "sync", "14"]
subprocess.run(command, check=True)
