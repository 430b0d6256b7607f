"""Freeze all ranks for 3 s, as a snapshot of the machine's containers does."""

from stopping import freeze, ranks

from bench.lifebench.life import event_log, phase_of

job = ranks()
with phase_of(event_log(None)):
    freeze(job, 3.0)
