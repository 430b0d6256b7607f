"""Tunables of what is sent out of a cluster, with unit and reason: messages about incidents, copies of archives.

Set by no option; "chosen" means not measured.
"""

from __future__ import annotations

RETRY_S = 2.0
"""Pause after a first failure, of a message or of a part; doubled for each further one, up to"""
LONGEST_RETRY_S = 300.0
"""this. For parts there is no last attempt: one is tried until it is copied, or the agent has removed it."""

SEND_S = 10.0
"""One attempt to send a message is given up after so long without an answer. Chosen."""
GIVE_UP_S = 3600.0
"""After so long the message is given up: an hour later an owner knows by other means."""
WAITING = 500
"""Messages that wait for one target; a further one is dropped, and counted. At 2 KiB each 1 MiB."""
MESSAGES_REMEMBERED = 20_000
"""Messages of which it is known that they were sent or wait; 100 bytes each."""
CAUGHT_UP_S = 900.0
"""A new leader says what ended within this time before it led, unless it is noted on the incident that it was said."""
ALERT_LASTS_S = 86400.0
"""An alert that is not resolved ends after a day: whoever was called has seen it by then."""
SHORTEST_METRICS_S, LONGEST_METRICS_S = 10, 3600
"""Between two sendings of the controller's metrics to a collector: a Prometheus asks no more often. Chosen."""

SEARCH_S = 5.0
"""Between two readings of the folder's names. A part that is copied some seconds later is not worse for it. Chosen."""
REQUEST_S = 30.0
"""One request to a store is given up after so long without an answer. Chosen."""
PARTS_REMEMBERED = 1024
"""Parts of which it is known that they are copied: a folder keeps 32."""
COPIED_MOST_BYTES = 32 << 20
"""Largest part that is copied: one has 0.1 to 2 MB, and is in memory three times while it is packed. Chosen."""
SILENT_S = 600.0
"""An uploader that began no pass and no copy for so long is not healthy: twice its longest pause."""
