"""Which pods the Services of a namespace publish: the addresses that their DNS names resolve to."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from kcover_ebpf.errors import ApiError
from kcover_ebpf.kube.client import ApiClient, segment

_LOG = logging.getLogger(__name__)
_SERVICE = "kubernetes.io/service-name"


def published(client: ApiClient, namespace: str) -> Mapping[str, frozenset[str]]:
    """Service -> uids of the pods whose addresses it publishes; empty if EndpointSlices cannot be read."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{segment(namespace)}/endpointslices"
    try:
        found = client.list(path)
    except ApiError as error:
        # the remaining pods are then restarted as soon as the new ones have addresses
        _LOG.info("cannot read the addresses of Services in %s: %s", namespace, error)
        return {}
    uids: defaultdict[str, set[str]] = defaultdict(set)
    for endpoint_slice in found.get("items") or ():
        labels = (endpoint_slice.get("metadata") or {}).get("labels") or {}
        for endpoint in endpoint_slice.get("endpoints") or ():
            if uid := _uid_of(endpoint):
                uids[str(labels.get(_SERVICE, ""))].add(uid)
    return {service: frozenset(pods) for service, pods in uids.items() if service}


def _uid_of(endpoint: Mapping[str, Any]) -> str | None:
    """Uid of the pod of an endpoint with a DNS record: it is ready, or the Service also publishes unready pods."""
    target = endpoint.get("targetRef") or {}
    if (endpoint.get("conditions") or {}).get("ready") is False or target.get("kind") != "Pod":
        return None
    return str(target.get("uid") or "") or None
