"""Tunables of what is sent out of a cluster: messages about incidents, copies of archives; with unit and reason.

No option sets them; "chosen" means not measured.
"""

from __future__ import annotations

RETRY_S = 2.0
"""Seconds of pause after the first failure to send a message or copy a part; doubled for each further one."""
LONGEST_RETRY_S = 300.0
"""Seconds of the longest pause. A part is retried until it is copied or the agent has removed it."""

SEND_S = 10.0
"""Seconds without an answer after which one attempt to send a message is given up. Chosen."""
GIVE_UP_S = 3600.0
"""Seconds after which a message is given up: an hour later its owner has learned of the incident by other means."""
WAITING = 500
"""Messages that wait for one target; a further one is dropped and counted. At 2 KiB each, 1 MiB."""
MESSAGES_REMEMBERED = 20_000
"""Messages remembered as sent or waiting; 100 bytes each."""
CAUGHT_UP_S = 900.0
"""Seconds before it became leader: a new leader announces incidents that ended within them, unless the incident notes
that this was done."""
ALERT_LASTS_S = 86400.0
"""Seconds after which an unresolved alert ends: a day, in which a person on call has seen it."""
SHORTEST_METRICS_S, LONGEST_METRICS_S = 10, 3600
"""Seconds between two sendings of the controller's metrics to a collector, least and most: a Prometheus scrapes no more
often. Chosen."""

SEARCH_S = 5.0
"""Seconds between two listings of the folder. A part may well be copied some seconds later. Chosen."""
REQUEST_S = 30.0
"""Seconds without an answer after which one request to a store is given up. Chosen."""
PARTS_REMEMBERED = 1024
"""Parts remembered as copied: a folder keeps 32."""
COPIED_MOST_BYTES = 32 << 20
"""Bytes of the largest part that is copied: one has 0.1 to 2 MB, and is in memory three times while it is packed.
Chosen."""
SILENT_S = 600.0
"""Seconds without a pass or a copy after which an uploader is unhealthy: twice its longest pause."""
