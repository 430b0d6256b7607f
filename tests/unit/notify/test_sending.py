"""Delivery to real servers on this host: what they get, and what is tried again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.errors import NotSent
from kcover_ebpf.notify.message import message_of
from kcover_ebpf.notify.sending import Sender
from kcover_ebpf.notify.target import MessageForm, NotifyTarget, Security
from tests.unit.notify.mail_server import MailServer, mail_server
from tests.unit.notify.notified_incidents import incident, status
from tests.unit.support.fake_api_server import Answer, Request, serving

MESSAGE = message_of(incident(), status())


@pytest.fixture
def mails() -> Iterator[MailServer]:
    with mail_server() as server:
        yield server


def mail_target(server: MailServer, security: Security = Security.NONE) -> NotifyTarget:
    return NotifyTarget(
        "t",
        MessageForm.EMAIL,
        server=f"127.0.0.1:{server.port}",
        security=security,
        sender="gpu@example.com",
        to=("a@example.com",),
        owner_domains=("example.com",),
    )


def test_send__the_address_and_the_token_are_read_from_the_secret(tmp_path: Path) -> None:
    with serving(lambda _: Answer(202)) as server:
        (tmp_path / "url").write_text(f"{server.url}/hook/secret\n")
        (tmp_path / "token").write_text("abc\n")
        target = NotifyTarget("t", MessageForm.WEBHOOK, url_key="url", key="token")
        assert Sender(tmp_path).send(target, MESSAGE)
        (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/hook/secret")
    assert request.headers["Authorization"] == "Bearer abc"
    assert request.body["summary"] == MESSAGE.summary


@pytest.mark.parametrize(
    ("code", "final"), [(400, True), (404, True), (429, False), (500, False), (503, False)]
)
def test_send__what_another_attempt_may_get_through_is_not_final(code: int, final: bool) -> None:
    with serving(lambda _: Answer(code)) as server, pytest.raises(NotSent) as caught:
        Sender(None).send(NotifyTarget("t", MessageForm.SLACK, server.url), MESSAGE)
    assert caught.value.is_final is final


def test_send__no_redirect_is_followed() -> None:
    def answer(request: Request) -> Answer:
        return Answer(307, headers={"Location": f"{server.url}/elsewhere"})

    with serving(answer) as server:
        with pytest.raises(NotSent, match="it answered 307"):
            Sender(None).send(NotifyTarget("t", MessageForm.SLACK, f"{server.url}/hook"), MESSAGE)
        assert [request.path for request in server.requests] == ["/hook"]


def test_send__an_error_names_no_secret(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        (tmp_path / "url").write_text(f"http://127.0.0.1:{closed.getsockname()[1]}/topsecret")
        with pytest.raises(NotSent) as caught:
            Sender(tmp_path, 1.0).send(NotifyTarget("t", MessageForm.SLACK, url_key="url"), MESSAGE)
    assert "topsecret" not in str(caught.value)
    assert "refused" in str(caught.value)
    assert not caught.value.is_final
    (tmp_path / "url").write_text("file:///etc/passwd")
    with pytest.raises(NotSent, match="https://") as caught:
        Sender(tmp_path).send(NotifyTarget("t", MessageForm.SLACK, url_key="url"), MESSAGE)
    assert caught.value.is_final


def test_send__a_mail_arrives_at_all_recipients(mails: MailServer) -> None:
    assert Sender(None).send(mail_target(mails), MESSAGE)
    ((recipients, text),) = mails.mails
    assert recipients == ["a@example.com", "ada@example.com"]
    assert "Subject: [kcover] PyTorchJob ml/llm was restarted" in text


def test_send__a_mail_server_without_tls_gets_nothing_unless_the_operator_says_so(
    mails: MailServer,
) -> None:
    with pytest.raises(NotSent):
        Sender(None).send(mail_target(mails, Security.STARTTLS), MESSAGE)
    assert not mails.mails


@pytest.mark.parametrize("code", [450, 550])
def test_send__a_recipient_that_is_refused_is_no_success(mails: MailServer, code: int) -> None:
    mails.refused = code
    with pytest.raises(NotSent, match="no recipient") as caught:
        Sender(None).send(mail_target(mails), MESSAGE)
    assert caught.value.is_final is (code == 550), "450 asks for another attempt"


def test_send__without_a_recipient_nothing_is_sent(mails: MailServer) -> None:
    target = NotifyTarget(
        "t", MessageForm.EMAIL, server=f"127.0.0.1:{mails.port}", owner_domains=("other.com",)
    )
    assert not Sender(None).send(target, MESSAGE)
    assert not mails.mails
