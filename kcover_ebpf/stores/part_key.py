"""The name of a node's part in a store: made from the Incident alone, so that a reader need not list a store. Pure."""

from __future__ import annotations

from kcover_ebpf.archive.manifest import plain

_ENDING = ".tar.gz"


def part_key(namespace: str, node: str, bundle: str) -> str:
    """NAMESPACE/WHAT/NODE.TIME.tar.gz; `bundle`: a name as `output.bundles.bundle_name` makes it, TIME-WHAT.

    WHAT is the incident, or the gang where the node did not know it: the parts of one incident are in one folder.
    """
    time_text, _, what = bundle.partition("-")
    return f"{plain(namespace)}/{plain(what)}/{plain(node)}.{plain(time_text)}{_ENDING}"
