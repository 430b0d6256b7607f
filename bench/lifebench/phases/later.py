"""Outside the job: 12 s after the phase began, the file that the ranks wait for appears."""

import time

from bench.lifebench.life import await_events, folder

await_events("phase_begin")
time.sleep(12)
(folder() / "ready").touch()
