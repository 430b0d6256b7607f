"""What a job occupies while it makes no progress: a part of its incident, so that the cost outlives job and pods."""

from __future__ import annotations

from dataclasses import field

from kcover_ebpf.api.codec import wire
from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class JobSize:
    """As it was when the incident began."""

    gpus: int = 0
    """Whole GPUs that the limits of its pods name; those that are allocated by DRA are not among them."""
    product: str | None = None
    """Model of most of them, as a label of their nodes says; None where none does."""
    hour_price: float | None = None
    """Of one GPU for an hour, from the operator's list; None where the list does not have it."""
    currency: str | None = None
    created_s: float | None = field(default=None, metadata=wire("jobCreatedAt", time=True))
    """Unix seconds, by the API server's clock."""

    def gpu_hours(self, seconds: float) -> float:
        """What so many seconds of the whole job are."""
        return self.gpus * seconds / 3600.0

    def price_of(self, seconds: float) -> float | None:
        """What these cost; None where the price is not known."""
        return None if self.hour_price is None else self.gpu_hours(seconds) * self.hour_price
