"""When the reader at the other end of each pipe or socket last took something. Pure.

A writer that sleeps until its reader has made room is woken late: at a quarter of the buffer of a Unix socket
(net/unix/af_unix.c: unix_writable()), at a third of that of a TCP socket (net/core/stream.c). Until then only its queue
shows whether the reader reads; and a wake-up shows nothing, because a signal causes it too. Of a process without
TCP connections the queues are read in one of many passes only (`UNCONNECTED_PASSES`): there its reader may be taken for
one that does not read. Times are boottime nanoseconds.
"""

from __future__ import annotations

from kcover_ebpf.facts.kernel import DescriptorSample, SocketSample


class Drains:
    """The queues of one process's pipes and sockets over time, by descriptor."""

    def __init__(self) -> None:
        self._taken_ns: dict[int, int] = {}
        self._read_ns: dict[int, int] = {}

    def on_descriptor(
        self, previous_sample: DescriptorSample | None, sample: DescriptorSample
    ) -> None:
        """Take a sample; `previous_sample`: the last one of the same Unix socket or pipe, None for the first."""
        if previous_sample is not None and sample.drain_mark != previous_sample.drain_mark:
            self._taken_ns[sample.fd] = sample.boottime_ns

    def on_socket(self, previous_sample: SocketSample | None, sample: SocketSample) -> None:
        """Take a sample of a TCP socket; `previous_sample`: the last one of the same descriptor, None for the first."""
        if previous_sample is None or previous_sample.inode != sample.inode:
            return
        if sample.acked_bytes > previous_sample.acked_bytes:
            self._taken_ns[sample.fd] = sample.boottime_ns
        if sample.unread_bytes < previous_sample.unread_bytes:
            self._read_ns[sample.fd] = sample.boottime_ns

    def taken_ns(self, fd: int) -> int:
        """When the other end last took something of what was written to this descriptor; 0 if that was not seen."""
        return self._taken_ns.get(fd, 0)

    def read_ns(self, fd: int) -> int:
        """When the process last read from this TCP socket; 0 if that was not seen."""
        return self._read_ns.get(fd, 0)
