"""The switch's port of the second host is down for 4 s."""

import os
import subprocess
import time

from stopping import ranks

from bench.lifebench.life import event_log, phase_of

ranks()
command = ["nsenter", f"--net=/run/netns/{os.environ['LIFE_NETWORK']}-sw"]
with phase_of(event_log(None)):
    for state, seconds in (("down", 4.0), ("up", 6.0)):
        subprocess.run([*command, "ip", "link", "set", "port1", state], check=True)
        time.sleep(seconds)
