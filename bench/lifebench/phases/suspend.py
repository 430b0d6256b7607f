"""Suspend the whole job for 10 s, as a batch system does for a more urgent one."""

import time

from stopping import ranks, resume, stop, whole

from bench.lifebench.life import event_log, phase_of

job = whole(ranks())
with phase_of(event_log(None)):
    stop(job)
    time.sleep(10)
    resume(job)
