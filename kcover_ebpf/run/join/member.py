"""The connection of a run to the coordinator: sends what this host observes, receives decisions for all hosts."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.run.join import messages
from kcover_ebpf.run.join.channel import Channel, ChannelError
from kcover_ebpf.run.join.messages import CoordinatorMessage, Hello, MemberMessage, PartEnd
from kcover_ebpf.run.join.options import JoinOptions
from kcover_ebpf.tunables.host import JOIN_AGAIN_S, JOIN_ANSWER_S, JOIN_BEAT_S


class Member:
    """Used by the run's own thread; two others wait for the network. Reconnects after a lost connection."""

    def __init__(self, options: JoinOptions, hello: Hello) -> None:
        self._options, self._hello = options, hello
        self._received: queue.SimpleQueue[CoordinatorMessage] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._report: FaultReport | None = None
        """The newest report that was not sent yet."""
        self._kept: list[MemberMessage] = []
        """Messages about the present start that must all arrive. Each connection carries all of them: what was sent
        just before the previous one was lost may not have arrived."""
        self._owed: list[MemberMessage] = []
        """Those that this connection has not carried yet."""
        self._closing = False
        self.why_lost: str | None = "not connected yet"
        """Why there is no connection; None while there is one."""
        self.refused: str | None = None
        """Why the coordinator refuses this host; it does not try again."""

    def start(self) -> None:
        """Start connecting; returns at once."""
        threading.Thread(target=self._run, name="kcover-join", daemon=True).start()

    def close(self) -> None:
        """Send the pending messages within a short time, and disconnect."""
        with self._changed:
            self._changed.wait_for(lambda: not self._owed or self.why_lost is not None, 1.0)
            self._closing = True
            self._changed.notify_all()

    def report(self, report: FaultReport) -> None:
        """Queue a report of what this host observes; replaces one that was not sent yet."""
        with self._changed:
            self._report = report
            self._changed.notify_all()

    def ended(self, code: int) -> None:
        """Send that the job of this host has ended by itself."""
        self._owe(MemberMessage(part_end=PartEnd(code, self._hello.start)))

    def done(self, order: str) -> None:
        """Send that an order was carried out."""
        self._owe(MemberMessage(done=order))

    def begin(self, start: int) -> None:
        """Note that the order was taken to start the job for this time; nothing is kept of the start before."""
        with self._changed:
            self._hello = replace(self._hello, start=start)
            self._kept, self._owed = [], []
            self._changed.notify_all()

    def received(self) -> Iterator[CoordinatorMessage]:
        """Messages received since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._received.get_nowait()

    def _owe(self, message: MemberMessage) -> None:
        with self._changed:
            self._kept.append(message)
            self._owed.append(message)
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._closing and self.refused is None:
            try:
                with contextlib.closing(self._connected()) as channel:
                    self._talk(channel)
            except (ChannelError, ObjectError, OSError) as error:
                self.why_lost = str(error)
            time.sleep(JOIN_AGAIN_S)

    def _connected(self) -> Channel:
        """A channel on which the coordinator has admitted this host."""
        address = (self._options.host, self._options.port)
        connection = socket.create_connection(address, timeout=JOIN_ANSWER_S)
        try:
            channel = Channel.opened(connection, self._options.secret, is_server=False)
            channel.send(messages.packed(MemberMessage(hello=self._hello)))
            self.refused = messages.to_member(channel.receive()).refused
        except BaseException:
            connection.close()
            raise
        if self.refused is not None:
            channel.close()
            raise ChannelError(f"refused: {self.refused}")
        with self._changed:
            self._owed = list(self._kept)
        self.why_lost = None
        return channel

    def _talk(self, channel: Channel) -> None:
        reader = threading.Thread(target=self._listen, args=(channel,), daemon=True)
        reader.start()
        while reader.is_alive() and not (self._closing and not self._owed):
            with self._changed:
                self._changed.wait_for(lambda: self._report or self._owed, JOIN_BEAT_S)
                report, self._report = self._report, None
                owed = list(self._owed)
            # the end of a job is sent after its last report
            if report is not None or not owed:
                channel.send(messages.packed(MemberMessage(report=report)))
            for message in owed:
                channel.send(messages.packed(message))
                with self._changed:
                    self._owed = [other for other in self._owed if other is not message]
                    self._changed.notify_all()
        if not self._closing:
            raise ChannelError(self.why_lost or "the connection was closed")

    def _listen(self, channel: Channel) -> None:
        try:
            while True:
                self._received.put(messages.to_member(channel.receive()))
        except (ChannelError, ObjectError) as error:
            self.why_lost = str(error)
            channel.close()
