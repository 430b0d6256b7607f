"""How many GPUs a job has, of which model, and what they cost: noted in its incident."""

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
    """The operator's list."""

    by_product: Mapping[str, float] = field(default_factory=dict)
    """Of one GPU for an hour, by the model as the nodes' labels name it."""
    currency: str = ""


class JobSizes:
    """Reads the pods and nodes that the controller keeps anyway."""

    def __init__(self, cache: ObjectCache, prices: GpuPrices) -> None:
        self._store, self._prices = cache, prices

    def of(self, pods: Iterable[GangPod], created_s: float | None) -> JobSize:
        """The size of the job of these pods; `created_s`: when it was created (unix seconds), None where unknown."""
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
