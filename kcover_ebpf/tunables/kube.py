"""Tunables of the client of Kubernetes: time-outs, retries and the lease of the leader, with unit and reason.

No option sets them. "Chosen" means that nothing was measured. A cap on memory is defined next to what it bounds.
"""

from __future__ import annotations

# --- Requests

CONNECT_TIMEOUT_S = 5.0
"""Seconds to connect: two lost packets of a handshake (1 + 2 s) are forgiven."""
REQUEST_TIMEOUT_S = 30.0
"""Seconds for one request: half of what the API server itself allows by default (--request-timeout, 60 s)."""
STREAM_SILENT_S = 90.0
"""Seconds of silence after which a watch is dead, though its connection is open: a server sends bookmarks each minute,
or ends the watch before (`QUIET_STREAM_S`)."""
KEEPALIVE_IDLE_S = 2
"""Seconds of silence on a connection after which the kernel probes whether its other end is alive (tcp(7))."""
KEEPALIVE_AGAIN_S = 1
"""Seconds without an answer after which the kernel probes again."""
KEEPALIVE_TRIES = 3
"""Probes without an answer after which the connection is given up. A watch that a network cut in silence ends after 5
s, not after `STREAM_SILENT_S`. That is as long as `Policy.stopped_s`, so a hang is acted on as soon as without the cut.
Kernels answer: 1,500 agents with five connections cost 4,000 packets a second, and none of the API server's own
time."""
UNANSWERED_S = 5.0
"""Seconds after which unacknowledged data ends a connection too: keepalive probes are not sent while data waits."""
TOKEN_S = 10.0
"""Seconds for which a token is cached. The official client reads its whole configuration again for each request."""
EXEC_POLL_S = 1.0
"""Seconds for which one read of a connection to a pod waits before it is checked whether to continue. Chosen."""


# --- Watches

STREAM_S = 290
"""Seconds of one watch; the server's own limit is 30 to 60 minutes, idle connections die sooner."""
QUIET_STREAM_S = 75
"""Seconds of one watch if the previous one received nothing. For a kind of which it has seen no object since its start,
an API server sends no bookmarks (its cacher: `lastProcessedResourceVersion == 0`); 15 s less than `STREAM_SILENT_S`."""
WATCH_FIRST_DELAY_S = 0.5
"""Seconds before a failed watch is started again; doubled with each failure in a row."""
WATCH_LONGEST_DELAY_S = 30.0
"""Seconds of the longest such pause. Both are about those of client-go's reflector."""
WATCH_HEALTHY_S = 10.0
"""Seconds after which the end of a watch is not a failure."""


# --- Leader election

LEASE_DURATION_S = 15.0
"""Seconds without a renewal after which a leader is taken to be gone."""
LEASE_GIVE_UP_S = 10.0
"""Seconds without a successful renewal after which a leader stops acting; less than `LEASE_DURATION_S`, so that there
are never two."""
LEASE_PERIOD_S = 2.0
"""Seconds between two renewals, and between two reads of who leads: client-go's default."""
LEASE_REQUEST_S = 2.5
"""Seconds after which a request is given up and made again: three of them fit into `LEASE_GIVE_UP_S`."""
LEASE_RETRY_S = 0.5
"""Seconds of pause before it is made again. Chosen."""
PART_MOST_BYTES = 128 << 20
"""Bytes of the largest packed bundle of one node that is fetched: a part has 0.1 to 2 MB. Chosen."""
PART_LIMIT_S = 60.0
"""Seconds to fetch the bundle of one node, all attempts together: 128 MiB at 2 MiB a second. Chosen."""
PART_TRIES = 3
"""Connections for one bundle; each continues where the previous one was cut off."""
PARTS_AT_ONCE = 16
"""Bundles fetched at the same time: an API server proxies each of them."""
