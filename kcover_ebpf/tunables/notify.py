"""Tunables of messages about incidents, with unit and reason. Set by no option; "chosen" means not measured."""

from __future__ import annotations

SEND_S = 10.0
"""One attempt is given up after so long without an answer. Chosen."""
RETRY_S = 2.0
"""Pause after a first failure; doubled for each further one, up to"""
LONGEST_RETRY_S = 300.0
"""this,"""
GIVE_UP_S = 3600.0
"""and after so long the message is given up: an hour later an owner knows by other means."""
WAITING = 500
"""Messages that wait for one target; a further one is dropped, and counted. At 2 KiB each 1 MiB."""
REMEMBERED = 20_000
"""Messages of which it is known that they were sent or wait; 100 bytes each."""
CAUGHT_UP_S = 900.0
"""A new leader says what ended within this time before it led, unless it is noted on the incident that it was said."""
ALERT_LASTS_S = 86400.0
"""An alert that is not resolved ends after a day: whoever was called has seen it by then."""
SHORTEST_METRICS_S, LONGEST_METRICS_S = 10, 3600
"""Between two sendings of the controller's metrics to a collector: a Prometheus asks no more often. Chosen."""
