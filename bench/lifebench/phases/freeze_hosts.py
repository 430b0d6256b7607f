"""Freeze the ranks of one host after those of the other, and thaw them in the same order, as backups do."""

import time
from threading import Thread

from stopping import freeze, ranks

from bench.lifebench.life import event_log, phase_of

job = ranks()
with phase_of(event_log(None)):
    first = Thread(target=freeze, args=(job[:2], 8.0))
    first.start()
    time.sleep(2)
    freeze(job[2:], 8.0)
    first.join()
