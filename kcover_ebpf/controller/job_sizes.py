"""The GPUs of a job: number, model and price, recorded in its incident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field

from kcover_ebpf.api.incident_parts import JobSize
from kcover_ebpf.api.nodes import gpu_product
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.recovery.restart.context import GangPod


@dataclass(frozen=True, slots=True)
class GpuPrices:
    """Prices of GPUs, set by the operator."""

    by_product: Mapping[str, float] = field(default_factory=dict)
    """Price of one GPU per hour, by the product name in the nodes' labels."""
    currency: str = ""


class JobSizes:
    """Computes job sizes from the pods and nodes that the controller keeps anyway."""

    def __init__(self, cache: ObjectCache, prices: GpuPrices) -> None:
        self._store, self._prices = cache, prices

    def of(self, pods: Iterable[GangPod], created_s: float | None) -> JobSize:
        """The size of the job of these pods; `created_s`: when it was created (unix seconds), None if unknown."""
        by_product: Counter[str] = Counter()
        for pod in pods:
            if not pod.pod.ended:
                by_product[gpu_product(self._store.raw_nodes.get(pod.pod.node) or {})] += (
                    pod.pod.gpus
                )
        gpus = by_product.total()
        product = by_product.most_common(1)[0][0] if gpus else ""
        price = self._prices.by_product.get(product)
        return JobSize(
            gpus=gpus,
            product=product or None,
            hour_price=price,
            currency=self._prices.currency if price is not None else None,
            created_s=created_s,
        )
