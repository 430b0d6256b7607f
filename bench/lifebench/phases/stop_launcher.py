"""Stop the launcher for 6 s, as a debugger does."""

import time

from stopping import parent, ranks, resume, stop

from bench.lifebench.life import event_log, phase_of

launcher = [parent(ranks(20.0)[0])]
with phase_of(event_log(None)):
    stop(launcher)
    time.sleep(6)
    resume(launcher)
