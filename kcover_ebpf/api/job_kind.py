"""What the pods of one kind of job look like: a row of job_kinds.toml, or the pods of a `JobKind` object. Pure."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job, as far as pods are concerned."""

    name: str
    group: str
    owner: str
    """Kind of the owner, which may have a name that other groups use as well (Volcano's Job)."""
    gang: tuple[str, ...]
    operator: str | None = None
    needs: tuple[str, ...] = ()
    parts: str | None = None
    launcher: tuple[str, ...] = ()
    container: str | None = None
