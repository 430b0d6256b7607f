"""A message in each form, as what receives it reads it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.model.verdict import Certainty, FailureClass
from kcover_ebpf.notify.forms import mail_of, request_of
from kcover_ebpf.notify.message import lines_of, message_of
from kcover_ebpf.notify.target import MessageForm, NotifyTarget
from tests.unit.notify.notified_incidents import incident, status

RECOVERED = message_of(incident(), status())
FAILED = message_of(incident(), status(Phase.FAILED, "every restart method was tried"))


def body(form: MessageForm, message=RECOVERED, secret: str = ""):
    return json.loads(request_of(NotifyTarget("t", form, "https://x"), message, secret).body)


@pytest.mark.parametrize(
    ("failure", "where", "text"),
    [
        (FailureClass.HARDWARE, "infrastructure", "infrastructure (hardware), not in the program"),
        (FailureClass.NETWORK, "infrastructure", "infrastructure (network), not in the program"),
        (FailureClass.STORAGE, "infrastructure", "infrastructure (storage), not in the program"),
        (FailureClass.PROGRAM, "program", "lies in the program"),
        (FailureClass.UNKNOWN, "unknown", "is not known"),
        (None, "unknown", "is not known"),
    ],
)
def test_message_of__says_whose_the_cause_is(
    failure: FailureClass | None, where: str, text: str
) -> None:
    message = message_of(incident(), status(failure=failure))
    assert message.where == where
    assert text in message.blame


@pytest.mark.parametrize(
    ("phase", "line"),
    [
        (Phase.OPEN, "Ended, if nothing moves, at: 2023-11-14T22:13:25Z"),
        (Phase.OBSERVED, None),
        (Phase.RECOVERED, None),
    ],
)
def test_message_of__says_how_certain_it_is_and_when_the_job_is_ended(
    phase: Phase, line: str | None
) -> None:
    known = status(phase)
    assert known.verdict is not None
    verdict = replace(known.verdict, certainty=Certainty.PROVEN, acts_at_s=1_700_000_005.0)
    message = message_of(incident(), replace(known, verdict=verdict))
    assert (message.certainty, message.acts_at) == ("proven", "2023-11-14T22:13:25Z")
    said = lines_of(message)
    assert "Certainty: proven" in said
    assert [text for text in said if text.startswith("Ended")] == ([] if line is None else [line])


def test_message_of__names_of_a_job_command_no_reader() -> None:
    message = message_of(incident(), status(text="thread \x1b[2J\r\nBcc: x"))
    assert "\x1b" not in message.text
    assert "\n" not in message.text


def test_request_of__a_cloud_event_has_what_version_1_0_requires() -> None:
    target = NotifyTarget("t", MessageForm.CLOUD_EVENTS, "https://x")
    request = request_of(target, RECOVERED, "token")
    assert request.headers["Content-Type"].startswith("application/cloudevents+json")
    assert request.headers["Authorization"] == "Bearer token"
    event = json.loads(request.body)
    assert event["specversion"] == "1.0"
    assert event["id"] == "uid-llm-1/Recovered"
    assert event["source"] == "/apis/kcover.io/v1alpha1/namespaces/ml/incidents/llm-1"
    assert event["type"] == "io.kcover.incident.recovered"
    assert rfc3339.from_text(event["time"]) == 1_700_000_013.0
    assert event["data"]["owner"] == "ada@example.com"


def test_request_of__slack_mentions_no_person_whom_a_job_names() -> None:
    message = message_of(incident(), status(text="<!channel> & more"))
    said = body(MessageForm.SLACK, message)
    text = said["blocks"][0]["text"]["text"]
    assert "&lt;!channel&gt; &amp; more" in text
    assert "<!" not in json.dumps(said)
    assert "rank 2" in said["text"]


def test_request_of__teams_gets_a_card() -> None:
    (attachment,) = body(MessageForm.TEAMS)["attachments"]
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    assert card["body"][0]["inlines"][0]["text"] == RECOVERED.summary


def test_request_of__teams_reads_no_markup_in_a_text() -> None:
    link = "[approve the restart](https://evil.example)"
    (attachment,) = body(MessageForm.TEAMS, replace(RECOVERED, owner=link))["attachments"]
    blocks = attachment["content"]["body"]
    assert f"Owner: {link}" in [block["inlines"][0]["text"] for block in blocks]
    # Adaptive Cards: Markdown is read in a TextBlock, and not in a TextRun
    assert {block["type"] for block in blocks} == {"RichTextBlock"}


def test_request_of__an_alert_is_resolved_under_the_same_labels() -> None:
    (fires,), (ends,) = body(MessageForm.ALERTMANAGER, FAILED), body(MessageForm.ALERTMANAGER)
    assert fires["labels"] == ends["labels"]
    assert ends["endsAt"] == rfc3339.to_text(1_700_000_013.0)
    assert rfc3339.from_text(fires["endsAt"]) > 1_700_050_000.0
    assert fires["annotations"]["where"] == "infrastructure"


def test_request_of__pagerduty_has_one_alert_for_an_incident() -> None:
    fires, ends = (
        body(MessageForm.PAGERDUTY, FAILED, "key"),
        body(MessageForm.PAGERDUTY, RECOVERED, "key"),
    )
    assert (fires["event_action"], ends["event_action"]) == ("trigger", "resolve")
    assert fires["dedup_key"] == ends["dedup_key"] == "uid-llm-1"
    assert fires["routing_key"] == "key"
    assert fires["payload"]["source"] == "n7"


def test_request_of__a_template_stays_json_whatever_a_job_is_called() -> None:
    message = message_of(incident(), status(text='a "quoted" \\ text'))
    target = NotifyTarget(
        "t", MessageForm.WEBHOOK, "https://x", template='{"t": "${text}", "n": "$$5 ${node}"}'
    )
    said = json.loads(request_of(target, message, "").body)
    assert said == {"t": 'a "quoted" \\ text', "n": "$5 n7"}


def test_mail_of__is_one_mail_for_a_phase() -> None:
    target = NotifyTarget("t", MessageForm.EMAIL, sender="gpu@example.com")
    mail = mail_of(target, RECOVERED, ("a@example.com", "b@example.com"))
    assert mail["To"] == "a@example.com, b@example.com"
    assert mail["Message-ID"] == "<uid-llm-1.Recovered.t@example.com>"
    text = mail.get_content()
    assert RECOVERED.blame in text
    assert "kubectl kcover explain llm-1 -n ml" in text
