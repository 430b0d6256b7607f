"""The coordinator and members over real connections on loopback."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kcover_ebpf.run.join import coordinator, messages
from kcover_ebpf.run.join.channel import Channel, ChannelError
from kcover_ebpf.run.join.coordinator import Coordinator
from kcover_ebpf.run.join.joined_gang import JoinedGang
from kcover_ebpf.run.join.member import Member
from kcover_ebpf.run.join.messages import CoordinatorMessage, Hello, MemberMessage, StartOrder
from kcover_ebpf.run.join.options import JoinOptions
from kcover_ebpf.settings import Act, Policy, Settings
from tests.waiting import until

SECRET = b"a secret of all hosts"
HELLO = Hello("a", "train", 2, Act.SHUTDOWN, run="one")


@pytest.fixture
def options() -> Iterator[JoinOptions]:
    """Of a coordinator that serves; `port` is its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = JoinOptions("127.0.0.1", free.getsockname()[1], 2, SECRET)
    listener = coordinator.bind(found)
    assert listener is not None
    serving = Coordinator(
        listener, JoinedGang("train", 2, Settings(act=Act.SHUTDOWN, policy=Policy())), found
    )
    serving.start()
    yield found
    serving.close()


def connected(options: JoinOptions, hello: Hello) -> tuple[Channel, str | None]:
    """A connection on which that was said, and why it was refused."""
    connection = socket.create_connection((options.host, options.port), 5)
    channel = Channel.opened(connection, options.secret, is_server=False)
    channel.send(messages.packed(MemberMessage(hello=hello)))
    return channel, messages.to_member(channel.receive()).refused


def why_ended(channel: Channel) -> str:
    """What a reader finds once the other side has closed it."""
    try:
        while True:
            channel.receive()
    except ChannelError as error:
        return str(error)
    finally:
        channel.close()


def test_coordinator__a_run_that_is_back_before_its_loss_was_noticed_is_admitted(
    options: JoinOptions,
) -> None:
    """As after a link that was down for a while: its own end gives up first."""
    lost, refused = connected(options, HELLO)
    assert refused is None
    again, refused = connected(options, HELLO)
    assert refused is None
    assert "closed" in why_ended(lost)
    # the end of the lost one is not the end of the host: another one with its name is still refused
    other, refused = connected(options, Hello("a", "train", 2, Act.SHUTDOWN, run="other"))
    other.close()
    assert refused is not None
    assert "host names must differ" in refused
    assert messages.to_member(again.receive()).refused is None
    again.close()


class FakeFullListener:
    """A listening socket whose next connections cannot be accepted."""

    def __init__(self, listener: socket.socket, failures: int) -> None:
        self._listener, self.failures = listener, failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()


def test_coordinator__a_connection_that_cannot_be_accepted_is_not_the_last_one() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        found = JoinOptions("127.0.0.1", listener.getsockname()[1], 2, SECRET)
        gang = JoinedGang("train", 2, Settings(act=Act.SHUTDOWN, policy=Policy()))
        failing: Any = FakeFullListener(listener, failures=2)
        serving = Coordinator(failing, gang, found)
        serving.start()
        channel, refused = connected(found, HELLO)
        assert (refused, failing.failures) == (None, 0)
        channel.close()
        serving.close()


def test_coordinator__a_run_that_is_back_is_sent_what_it_missed(
    options: JoinOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    missed = CoordinatorMessage(start=StartOrder(3.0))
    monkeypatch.setattr(JoinedGang, "missed", lambda *_: iter([missed]))
    channel, refused = connected(options, HELLO)
    assert refused is None
    assert messages.to_member(channel.receive()) == missed
    channel.close()


def test_member__that_lost_its_connection_is_admitted_again(options: JoinOptions) -> None:
    with ExitStack() as stack:
        member = Member(options, HELLO)
        member.start()
        stack.callback(member.close)
        until(lambda: member.why_lost is None)
        # its connection is taken away, as a firewall that forgot it would
        stolen, refused = connected(options, HELLO)
        assert refused is None
        until(lambda: member.why_lost is not None)
        threading.Timer(0.1, stolen.close).start()
        until(lambda: member.why_lost is None)
        assert member.refused is None
