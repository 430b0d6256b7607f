"""Attach strace to rank 2 with all its threads for 6 s."""

import subprocess

from stopping import ranks

from bench.lifebench.life import event_log, phase_of

pid = ranks()[2]
with phase_of(event_log(None)):
    command = ["timeout", "-s", "INT", "6", "strace", "-f", "-o", "trace", "-p", str(pid)]
    subprocess.run(command, check=False, capture_output=True)
