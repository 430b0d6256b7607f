"""Tunables of `kubectl kcover` and of pages for people, with unit and reason.

No option sets them; "chosen" means that nothing was measured.
"""

from __future__ import annotations

FOLLOW_S = 0.5
"""Seconds between two requests for an incident that is followed: a person sees no difference. Chosen."""
TAKEN_UP_S = 15.0
"""Seconds within which a request is picked up: a leading controller needs one, a new leader the length of its lease.
Chosen."""
INJECTED_S = 30.0
"""Seconds after which a drill that has not begun never will: the agent starts a program and asks the API server.
Chosen."""
DRILL_RECOVERS_S = 120.0
"""Seconds for which the restart of a drill's job is followed after the injected fault is over. Chosen."""
PAGE_EVERY_S = 5.0
"""Seconds between two automatic reloads of the controller's page: phases of a restart take seconds. Chosen."""
TENTHS_S = 600.0
"""Seconds: times of incidents shorter than this show tenths of a second on the incident's page."""
MOMENTS_BEFORE_S = 60.0
"""Seconds before the fault from which on the page shows an incident's moments."""
SIGNS_EARLIEST_S = 86400.0
"""Seconds before the fault from which on log lines count as its signs: a day."""
