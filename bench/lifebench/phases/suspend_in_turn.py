"""Suspend the whole job rank by rank, as a script does that goes from process to process."""

import time

from stopping import ranks, resume, stop

from bench.lifebench.life import event_log, phase_of

job = ranks()
with phase_of(event_log(None)):
    stop(job, 1.0)
    time.sleep(6)
    resume(job, 1.0)
