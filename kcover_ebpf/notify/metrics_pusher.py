"""Sends the controller's metrics to a collector, in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kcover_ebpf.errors import NotSent
from kcover_ebpf.notify.forms import otlp_request
from kcover_ebpf.notify.otlp import metrics_bytes
from kcover_ebpf.notify.sending import Sender
from kcover_ebpf.notify.target import NotifyTarget
from kcover_ebpf.output.log_lines import about

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_LOG = logging.getLogger(__name__)


class MetricsPusher:
    """Pushes to one target. Failed pushes are not repeated: the next one contains the totals."""

    def __init__(
        self,
        target: NotifyTarget,
        collect: Callable[[], Iterable[Family]],
        sender: Sender,
        instance: str,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`collect`: method of a metrics registry; `instance`: name of this replica; `wall`: unix seconds."""
        self._target, self._collect, self._sender = target, collect, sender
        self._instance, self._wall, self._begin_s = instance, wall, wall()
        self._ending = threading.Event()
        name = f"metrics {target.name}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the first push follows after the target's period."""
        self.thread.start()

    def close(self, within_s: float) -> None:
        """Stop within `within_s` seconds; the last values are not sent."""
        self._ending.set()
        self.thread.join(within_s)

    def push(self) -> None:
        """Send the current value of all metrics; raises `NotSent`."""
        body = metrics_bytes(self._collect(), self._begin_s, self._wall(), self._instance)
        self._sender.ask(self._target, lambda token: otlp_request(body, "/v1/metrics", token))

    def _run(self) -> None:
        while not self._ending.wait(self._target.metrics_s):
            try:
                self.push()
            except NotSent as error:
                name = self._target.name
                _LOG.info("target %s: metrics are not sent: %s", name, error, extra=about(name))
            except Exception:  # noqa: BLE001
                # a metric that cannot be converted must not end the thread
                _LOG.exception("target %s: internal error, please report it", self._target.name)
