"""Tunables of copies of archives, with unit and reason. Set by no option; "chosen" means not measured."""

from __future__ import annotations

SEARCH_S = 5.0
"""Between two readings of the folder's names. A part that is copied some seconds later is not worse for it. Chosen."""
REQUEST_S = 30.0
"""One request to a store is given up after so long without an answer. Chosen."""
RETRY_S = 2.0
"""Pause after a first failure; doubled for each further one, up to"""
LONGEST_RETRY_S = 300.0
"""this. There is no last attempt: a part is tried until it is copied, or the agent has removed it."""
REMEMBERED = 1024
"""Parts of which it is known that they are copied: a folder keeps 32."""
COPIED_MOST_BYTES = 32 << 20
"""Largest part that is copied: one has 0.1 to 2 MB, and is in memory three times while it is packed. Chosen."""
SILENT_S = 600.0
"""An uploader that began no pass and no copy for so long is not healthy: twice its longest pause."""
