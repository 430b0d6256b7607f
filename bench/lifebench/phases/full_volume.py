"""A small volume used by the job, which is full until 14 s after the phase began."""

import subprocess
import time

from bench.lifebench.life import await_events, folder

place = folder() / "files"
place.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], check=True)
other = place / "old-checkpoint"
other.write_bytes(bytes(3 << 20))
await_events("phase_begin")
time.sleep(14)
other.unlink()
