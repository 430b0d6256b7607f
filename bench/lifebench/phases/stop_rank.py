"""Stop rank 2 for 3 s, as a tool does that dumps a process's memory."""

import time

from stopping import ranks, resume, stop

from bench.lifebench.life import event_log, phase_of

chosen = ranks()[2:3]
with phase_of(event_log(None)):
    stop(chosen)
    time.sleep(3)
    resume(chosen)
