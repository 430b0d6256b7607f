"""Attach gdb to rank 1 in the middle of its training, read the stacks, stay for 4 s."""

import json
import subprocess

from bench.lifebench.life import await_events, event_log, events, phase_of

await_events("step", 4 * 45)
pid = next(line["pid"] for line in map(json.loads, events("start")) if line["rank"] == 1)
with phase_of(event_log(None)):
    commands = ["-ex", "thread apply all bt 3", "-ex", "shell sleep 4", "-ex", "detach"]
    subprocess.run(["gdb", "-batch", "-p", str(pid), *commands], capture_output=True, check=True)
