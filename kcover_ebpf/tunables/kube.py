"""Tunables of the client of Kubernetes: time-outs, retries and the lease of the leader, with unit and reason.

Set by no option. "Chosen" means that nothing was measured. A cap on memory stays beside what it bounds.
"""

from __future__ import annotations

# --- Requests

CONNECT_TIMEOUT_S = 5.0
"""Two lost packets of a handshake (1 + 2 s) are forgiven."""
REQUEST_TIMEOUT_S = 30.0
"""Half of what the API server itself allows a request by default (--request-timeout, 60 s)."""
STREAM_SILENT_S = 90.0
"""A watch that is silent for so long is dead, though its connection is open: a server sends bookmarks each minute, or
ends the watch before (`QUIET_STREAM_S`)."""
KEEPALIVE_IDLE_S = 2
"""A connection that says nothing for so long is asked by the kernel whether its other end is there (tcp(7)),"""
KEEPALIVE_AGAIN_S = 1
"""again after so long without an answer,"""
KEEPALIVE_TRIES = 3
"""and is given up after so many: a watch that a network cut in silence ends after 5 s, not after `STREAM_SILENT_S`.
That is as long as `Policy.stopped_s`, so a hang is acted on as soon as without the cut. Kernels answer: 1,500 agents
with five connections cost 4,000 packets a second, and none of the API server's own time."""
UNANSWERED_S = 5.0
"""What was sent and is not acknowledged for so long ends a connection too: there is no keepalive while data waits."""
TOKEN_S = 10.0
"""For so long a token is not asked for again: the official client reads its whole configuration anew each time."""
EXEC_POLL_S = 1.0
"""One read of a connection to a pod waits for so long, then it is seen whether to read on. Chosen."""


# --- Watches

STREAM_S = 290
"""Length of one watch; the server's own limit is 30 to 60 minutes, idle connections die sooner."""
QUIET_STREAM_S = 75
"""The same where nothing came in the watch before. Of a kind of which it saw no object since its start, an API server
sends no bookmarks (its cacher: `lastProcessedResourceVersion == 0`); 15 s less than `STREAM_SILENT_S`."""
WATCH_FIRST_DELAY_S = 0.5
"""Before a watch that failed is begun again; doubled with each failure in a row,"""
WATCH_LONGEST_DELAY_S = 30.0
"""up to this. Both as client-go's reflector, about."""
WATCH_HEALTHY_S = 10.0
"""A watch that lived for so long was no failure."""


# --- Leader election

LEASE_DURATION_S = 15.0
"""A leader that did not renew for so long is taken to be gone."""
LEASE_GIVE_UP_S = 10.0
"""A leader that could not renew for so long stops acting; less than `LEASE_DURATION_S`, so that there are never two."""
LEASE_PERIOD_S = 2.0
"""Between two renewals, and two readings of who leads: as client-go's default."""
LEASE_REQUEST_S = 2.5
"""A request that takes longer is given up and made again: three of them fit into `LEASE_GIVE_UP_S`."""
LEASE_RETRY_S = 0.5
"""Pause before it is made again. Chosen."""
PART_MOST_BYTES = 128 << 20
"""Largest bundle of one node that is fetched, packed: a part has 0.1 to 2 MB. Chosen."""
PART_LIMIT_S = 60.0
"""Longest time to fetch the bundle of one node, all tries together: 128 MiB at 2 MiB a second. Chosen."""
PART_TRIES = 3
"""Connections for one bundle; each continues where the one before was cut off."""
PARTS_AT_ONCE = 16
"""Bundles that are fetched at the same time: an API server proxies each of them."""
