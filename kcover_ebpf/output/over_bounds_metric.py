"""How often what a tenant made was over its bound, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily

from kcover_ebpf.host import over_bounds

_TEXT = (
    "What tenants made that is larger, or more, than what is kept of one: a `pod`, an `incident`, `pods`, "
    "`policies` or `incidents` of a namespace, `descriptors` or `mappings` of a process, a `file` under /proc."
)


class OverBounds:
    """A collector: read when it is asked."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """For prometheus_client."""
        family = CounterMetricFamily("kcover_over_bound", _TEXT, labels=["what"])
        for what, count in sorted(over_bounds.counts().items()):
            family.add_metric([what], count)
        yield family
