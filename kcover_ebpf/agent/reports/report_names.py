"""Names of the objects that an agent writes. Pure."""

from __future__ import annotations

import hashlib
import re

from kcover_ebpf.api.job_kinds import Gang

_LONGEST = 253
_HASH = 6


def key_of(gang: Gang) -> str:
    """A name for a gang that is unique in the cluster, also among gangs of another kind with the same name."""
    text = "\0".join(part for pair in gang.id.selector for part in pair)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH]
    return f"{gang.namespace}/{gang.name}-{digest}"


def report_name(gang: Gang, node: str) -> str:
    """The name of a gang's report: a DNS subdomain, `JOB-HASH.NODE`.

    The part before the node's name has no dot: otherwise the agent of node b could take names of reports of node
    a.b.
    """
    name = key_of(gang).partition("/")[2]
    job, _, digest = name.rpartition("-")
    plain = re.sub(r"[^a-z0-9-]", "-", job.lower()).strip("-") or "job"
    room = _LONGEST - len(node) - len(digest) - 2
    return f"{plain[:room].rstrip('-')}-{digest}.{node}"
