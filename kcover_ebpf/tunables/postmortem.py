"""Tunables of the page about an incident; each with unit and reason."""

from __future__ import annotations

TENTHS_S = 600.0
"""Times of incidents that last less are printed with tenths of a second."""
MOMENTS_BEFORE_S = 60.0
"""Of the incident's own moments before the fault."""
SIGNS_EARLIEST_S = 86400.0
"""What a log said a day before is no sign of this fault."""
