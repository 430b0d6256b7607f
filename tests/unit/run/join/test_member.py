"""A member of joined runs, and a coordinator that does as the test says."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kcover_ebpf.run.join import messages
from kcover_ebpf.run.join.channel import Channel
from kcover_ebpf.run.join.member import Member
from kcover_ebpf.run.join.messages import CoordinatorMessage, Hello, MemberMessage, PartEnd
from kcover_ebpf.run.join.options import JoinOptions
from kcover_ebpf.settings import Act

SECRET = b"a secret of all hosts"
HELLO = Hello("a", "train", 2, Act.RESTART, run="one")


class FakeCoordinator:
    """Admits a member once for each call of `admit`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.options = JoinOptions("127.0.0.1", self._listener.getsockname()[1], 2, SECRET)
        self._channel: Channel | None = None

    def admit(self) -> Hello:
        connection, _ = self._listener.accept()
        self._channel = Channel.opened(connection, SECRET, is_server=True)
        hello = messages.hello_of(self._channel.receive())
        self._channel.send(messages.packed(CoordinatorMessage()))
        return hello

    def receive(self) -> MemberMessage:
        """The next message with content."""
        assert self._channel is not None
        while (message := messages.from_member(self._channel.receive())) == MemberMessage():
            pass
        return message

    def drop(self) -> None:
        """Lose the connection."""
        assert self._channel is not None
        self._channel.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def fake_coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCoordinator]:
    for name in ("JOIN_AGAIN_S", "JOIN_BEAT_S"):
        monkeypatch.setattr(f"kcover_ebpf.run.join.member.{name}", 0.05)
    made = FakeCoordinator()
    yield made
    made.drop()
    made.close()


def test_member__what_it_says_of_a_start_is_said_on_each_connection(
    fake_coordinator: FakeCoordinator,
) -> None:
    """What was sent just before a connection was lost may not have arrived."""
    member = Member(fake_coordinator.options, HELLO)
    member.start()
    said = [MemberMessage(part_end=PartEnd(1)), MemberMessage(done="train-1-restart")]
    assert fake_coordinator.admit() == HELLO
    member.ended(1)
    member.done("train-1-restart")
    assert [fake_coordinator.receive() for _ in said] == said
    fake_coordinator.drop()
    assert fake_coordinator.admit() == HELLO
    assert [fake_coordinator.receive() for _ in said] == said
    member.begin(1)
    fake_coordinator.drop()
    assert fake_coordinator.admit().start == 1
    member.ended(0)
    assert fake_coordinator.receive() == MemberMessage(part_end=PartEnd(0, start=1))
    member.close()
