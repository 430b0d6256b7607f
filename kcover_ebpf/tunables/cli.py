"""Tunables of `kubectl kcover` and of pages for people, with unit and reason.

Set by no option; "chosen" means that nothing was measured.
"""

from __future__ import annotations

FOLLOW_S = 0.5
"""Between two requests for an incident that is followed: a person sees no difference. Chosen."""
TAKEN_UP_S = 15.0
"""A leading controller takes up a request within a second, and one that takes over within its lease. Chosen."""
INJECTED_S = 30.0
"""A drill that has not begun after so long does not: the agent starts a program, and asks the API server. Chosen."""
DRILL_RECOVERS_S = 120.0
"""After the injected fault is over, the restart of its job is followed for so long. Chosen."""
PAGE_EVERY_S = 5.0
"""The page of the controller asks for itself anew so often: phases of a restart take seconds. Chosen."""
TENTHS_S = 600.0
"""On the page about an incident: times of incidents that last less are printed with tenths of a second."""
MOMENTS_BEFORE_S = 60.0
"""On it, of the incident's own moments before the fault."""
SIGNS_EARLIEST_S = 86400.0
"""What a log said a day before is no sign of this fault."""
