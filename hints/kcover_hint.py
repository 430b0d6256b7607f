"""Announces to kcover-ebpf what a training is about to do. Copy this one file; it needs nothing, and nothing needs it.

    from kcover_hint import checkpoint_complete, phase

    with phase("evaluation", up_to_s=900):
        evaluate(model)
    save(model, path)
    checkpoint_complete(step)

Each prints one line to standard error, which the node's agent reads in the container's log. A phase that is announced
for longer than the operator allows (an hour unless set otherwise) counts for nothing. Where no agent reads the log,
the lines do nothing.
"""

import contextlib
import re
import sys

__all__ = ["checkpoint_complete", "phase"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@contextlib.contextmanager
def phase(name, up_to_s):
    """A phase that may take up to `up_to_s` seconds without a step. Raises ValueError for a wrong name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a letter, then letters, digits, - and _, at most 32")
    _say(f"phase {name} up to {max(1, round(up_to_s))} s")
    try:
        yield
    finally:
        _say(f"phase {name} ends")


def checkpoint_complete(step):
    """The checkpoint of this step is on stable storage, whole: a restart would begin there."""
    _say(f"checkpoint {int(step)} is complete")


def _say(text):
    # one write of a whole line: those of other threads do not come between
    sys.stderr.write(f"kcover: {text}\n")
    sys.stderr.flush()
