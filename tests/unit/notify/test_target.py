"""The operator's list: what it may say, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from kcover_ebpf.api.incident import Phase
from kcover_ebpf.errors import PolicyError
from kcover_ebpf.notify.message import WORDS
from kcover_ebpf.notify.target import MessageForm, Security, targets_of

MAIL = {"form": "Email", "server": "mail:25", "sender": "gpu@example.com", "to": ["a@example.com"]}


def read(**row: Any):
    return targets_of({"targets": [{"name": "t", **row}]}, "file", WORDS)


def test_targets_of__each_form_is_read() -> None:
    (slack,) = read(form="Slack", urlKey="slack", namespaces=["ml"])
    assert (slack.form, slack.url_key) == (MessageForm.SLACK, "slack")
    assert slack.serves("ml")
    assert not slack.serves("other")
    (mail,) = read(**MAIL, security="TLS", ownerDomains=["example.com"])
    assert (mail.host_port, mail.security) == (("mail", 25), Security.TLS)
    (pager,) = read(form="PagerDuty", key="routing")
    assert Phase.RECOVERED not in pager.ends, "no person is called for what recovered by itself"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"form": "Fax", "url": "https://x"}, "form"),
        ({"form": "Slack"}, "url, or urlKey where it is secret"),
        ({"form": "Slack", "url": "https://x", "urlKey": "k"}, "not both"),
        ({"form": "Slack", "url": "file:///etc/passwd"}, "https:// or http://"),
        ({"form": "Slack", "url": "https://"}, "https:// or http://"),
        ({"form": "Slack", "url": "https://x y"}, "https:// or http://"),
        ({"form": "Slack", "urlKey": "../token"}, "keys of the Secret"),
        ({"form": "Slack", "url": "https://x", "uri": "y"}, "unknown key 'uri'"),
        ({"form": "Slack", "url": "https://x", "template": "{}"}, "form Webhook"),
        ({"form": "Webhook", "url": "https://x", "template": "${jobs}"}, "no ${jobs}"),
        ({"form": "Webhook", "url": "https://x", "template": "$ 5"}, "$$"),
        ({"form": "PagerDuty"}, "routing key"),
        (MAIL | {"server": "mail"}, "HOST:PORT"),
        (MAIL | {"to": []}, "who gets the mail"),
        (MAIL | {"to": ["a@example.com\nBcc: b@example.com"]}, "addresses"),
        (MAIL | {"user": "u"}, "key names the password"),
        (MAIL | {"user": "u", "key": "k", "security": "None"}, "StartTLS or TLS"),
        ({"form": "Webhook", "url": "https://x", "to": ["a@example.com"]}, "form Email"),
    ],
)
def test_targets_of__what_is_wrong_is_said_in_one_line(row: dict[str, Any], text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(**row)
    assert str(caught.value).startswith("file: ")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_targets_of__a_name_is_there_once() -> None:
    row = {"name": "t", "form": "Slack", "url": "https://x"}
    with pytest.raises(PolicyError, match="two targets have one name"):
        targets_of({"targets": [row, row]}, "file", WORDS)


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        ("ada@example.com", ("a@example.com", "ada@example.com")),
        ("ada@evil.com", ("a@example.com",)),
        ("ada@example.com.evil.com", ("a@example.com",)),
        ("x@evil.com, ada@example.com", ("a@example.com",)),
        ("team-a", ("a@example.com",)),
        (None, ("a@example.com",)),
    ],
)
def test_recipients__an_owner_is_notified_only_within_the_operators_domains(
    owner: str | None, expected: tuple[str, ...]
) -> None:
    (target,) = read(**MAIL, ownerDomains=["example.com"])
    assert target.recipients(owner) == expected
