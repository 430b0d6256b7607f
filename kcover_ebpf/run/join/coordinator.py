"""The run that listens: collects the messages of all hosts, has them judged, and sends the same result to all.

It is the run on the host that `--join` names, which is also a member like the others.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable

from kcover_ebpf.errors import ObjectError, UsageError
from kcover_ebpf.run.join import messages
from kcover_ebpf.run.join.channel import Channel, ChannelError
from kcover_ebpf.run.join.joined_gang import JoinedGang
from kcover_ebpf.run.join.messages import CoordinatorMessage, Hello
from kcover_ebpf.run.join.options import JoinOptions
from kcover_ebpf.tunables.host import JOIN_BEAT_S, JOIN_ENDED_S, JOIN_TICK_S

_MORE_CONNECTIONS = 16
"""Connections in addition to one for each host: of runs that are refused, or of peers without the secret."""
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EADDRINUSE)


def bind(options: JoinOptions) -> socket.socket | None:
    """A socket that listens at the address of `--join`; None if that is another host, or another run here.

    Raises `UsageError` if it cannot be opened for another reason.
    """
    for family, kind, protocol, _, address in socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM
    ):
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(_MORE_CONNECTIONS)
        except OSError as error:
            listener.close()
            if error.errno not in _NOT_OURS:
                where = f"{options.host}:{options.port}"
                raise UsageError(f"cannot listen at {where}: {error.strerror}") from error
        else:
            return listener
    return None


class Coordinator:
    """Serves from `start` to `close`, in its own threads."""

    def __init__(
        self,
        listener: socket.socket,
        gang: JoinedGang,
        options: JoinOptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: returns unix seconds; hosts' times are converted to it."""
        self._listener, self._gang, self._options, self._clock = listener, gang, options, clock
        self._lock = threading.Lock()
        """Guards the gang, and the channels of hosts that were admitted."""
        self._channels: dict[str, Channel] = {}
        self._slots = threading.BoundedSemaphore(options.hosts + _MORE_CONNECTIONS)
        self._closing = threading.Event()
        self._spoken_s = 0.0

    def start(self) -> None:
        """Start the serving threads; returns at once."""
        for work in (self._accept, self._tick):
            threading.Thread(target=work, name="kcover-join", daemon=True).start()

    def close(self) -> None:
        """Stop serving once all hosts were informed of the end of the job, or after a while."""
        deadline_s = time.monotonic() + JOIN_ENDED_S
        while time.monotonic() < deadline_s:
            with self._lock:
                if not self._channels or not self._gang.is_ending:
                    break
            time.sleep(JOIN_TICK_S)
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for channel in self._channels.values():
                channel.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError:  # such as EMFILE: it passes, and hosts must be able to connect again
                self._closing.wait(JOIN_TICK_S)
                continue
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            arguments = (connection, str(address[0]))
            threading.Thread(target=self._serve, args=arguments, daemon=True).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        try:
            channel = Channel.opened(connection, self._options.secret, is_server=True)
            with contextlib.closing(channel):
                self._hear(channel, address)
        except (ChannelError, ObjectError):
            connection.close()  # a peer without the secret learns nothing; a member tries again
        finally:
            self._slots.release()

    def _hear(self, channel: Channel, address: str) -> None:
        hello = messages.hello_of(channel.receive())
        try:
            if not self._admit(hello, channel, address):
                return
            while not self._closing.is_set():
                self._take(hello.host, messages.from_member(channel.receive()))
        finally:
            with self._lock:
                if self._channels.get(hello.host) is channel:
                    del self._channels[hello.host]
                    self._gang.leave(hello.host)

    def _admit(self, hello: Hello, channel: Channel, address: str) -> bool:
        """Answer a hello, and send the order that the host lacks; False if it is refused."""
        with self._lock:
            refused = self._gang.join(hello, address, self._clock())
            answers = [CoordinatorMessage(refused=refused)]
            if refused is None:
                if (lost := self._channels.get(hello.host)) is not None:
                    lost.close()  # an old connection of the same run, which has reconnected; its thread notices
                self._channels[hello.host] = channel
                answers += self._gang.missed(hello)
            for answer in answers:
                channel.send(messages.packed(answer))
        return refused is None

    def _take(self, host: str, message: messages.MemberMessage) -> None:
        with self._lock:
            if message.report is not None:
                self._gang.report(host, message.report, self._clock())
            if message.part_end is not None:
                self._gang.ended(host, message.part_end)
            if message.done is not None:
                self._gang.done(host, message.done)

    def _tick(self) -> None:
        while not self._closing.wait(JOIN_TICK_S):
            with self._lock:
                said = list(self._gang.tick(self._clock()))
                if not said and time.monotonic() - self._spoken_s < JOIN_BEAT_S:
                    continue
                self._spoken_s = time.monotonic()
                for message in said or [CoordinatorMessage()]:
                    self._say(message)

    def _say(self, message: CoordinatorMessage) -> None:
        for channel in self._channels.values():
            try:
                channel.send(messages.packed(message))
            except ChannelError:
                channel.close()  # its own thread notices
