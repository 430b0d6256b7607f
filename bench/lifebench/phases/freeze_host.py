"""Freeze the ranks of the second host for 3 s, as a commit or checkpoint of their container does, twice."""

import time

from stopping import freeze, ranks

from bench.lifebench.life import event_log, phase_of

container = ranks()[2:]
with phase_of(event_log(None)):
    freeze(container, 3.0)
    time.sleep(5)
    freeze(container, 3.5)
