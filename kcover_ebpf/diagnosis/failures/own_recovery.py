"""Frameworks that recover from a crash by themselves, and how each of them is recognised. One row each.

A framework may announce its next step (torchrun counts its restarts in the environment of its ranks), or be recognised:
Ray's workers are started by a raylet, whose client learns that one died; a rank of torchft names the lighthouse by
which the remaining groups continue without it.
"""

from __future__ import annotations

from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.membership.rank_numbers import lighthouse_of, restarts_left
from kcover_ebpf.model.roles import program
from kcover_ebpf.model.verdict import Evidence, EvidenceKind

_RAYLET = ("raylet",)


def own_recovery(
    process: ProcessHistory, launcher_process: ProcessHistory | None, *, is_missed: bool = True
) -> Evidence | None:
    """Evidence that an ended rank is about to be replaced, or not needed; None if nothing shows that.

    `launcher_process`: the parent, if it lives: an ended one restarts nothing. `is_missed`: a rank lives and waits for
    it; if all have ended, as ranks do that are to be started again, any launcher may do that.
    """
    environ = {} if process.seen is None else process.seen.rank_environ
    text = None
    if launcher_process is not None:
        launcher, left = f"{launcher_process.comm} ({launcher_process.pid})", restarts_left(environ)
        if left > 0:
            text = f"{launcher} starts failed ranks again, {left} more time(s)"
        elif launcher_process.seen is not None and program(launcher_process.seen)[:1] == _RAYLET:
            text = f"{launcher} starts them again if Ray Train asks for it (max_failures)"
        elif not is_missed:
            text = f"no rank is left that waits, and {launcher} may start them again"
    if text is None and (lighthouse := lighthouse_of(environ)) is not None:
        text = f"the other replica groups of torchft continue without it (lighthouse {lighthouse})"
    return None if text is None else Evidence(EvidenceKind.SINK, text)
