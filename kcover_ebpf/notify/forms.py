"""Converts a message to the format of its target.

Pure. Sources: CloudEvents 1.0 (structured content mode of the HTTP binding), Slack's incoming webhooks and Block
Kit, Teams' workflows with Adaptive Cards 1.4, Alertmanager's API v2 (POST /api/v2/alerts), PagerDuty's Events API
v2, OTLP 1 over HTTP, RFC 5322.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from email.message import EmailMessage
from string import Template
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.notify.message import Message, fields_of, lines_of
from kcover_ebpf.notify.otlp import trace_bytes
from kcover_ebpf.notify.target import MessageForm, NotifyTarget
from kcover_ebpf.tunables.sending import ALERT_LASTS_S

_JSON = "application/json"
_MOST_SECTION = 3000
"""Most characters of a text block at Slack."""
_MOST_SUMMARY = 1024
"""Most characters of a summary at PagerDuty."""


@dataclass(frozen=True, slots=True)
class Request:
    """One POST request to a target: body, headers and path."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    """Path to append to the target's address; empty for the address itself."""


def request_of(target: NotifyTarget, message: Message, secret: str) -> Request:
    """The request for an HTTP target; `secret`: content of the target's key file, empty if it has none."""
    if target.template:
        text = Template(target.template).substitute(
            {key: json.dumps(value)[1:-1] for key, value in fields_of(message).items()}
        )
        return _request(text.encode(), _JSON, secret)
    if target.form is MessageForm.PAGERDUTY:
        return _request(json.dumps(_pagerduty(message, secret)).encode(), _JSON)
    if target.form is MessageForm.OPEN_TELEMETRY:
        return otlp_request(trace_bytes(message.trace), "/v1/traces", secret)
    kind = "application/cloudevents+json" if target.form is MessageForm.CLOUD_EVENTS else _JSON
    return _request(json.dumps(_BODIES[target.form](message)).encode(), kind, secret)


def otlp_request(body: bytes, path: str, token: str) -> Request:
    """An OTLP request over HTTP, in binary form."""
    return Request(body, {"Content-Type": "application/x-protobuf", **_bearer(token)}, path)


def _request(body: bytes, kind: str, token: str = "") -> Request:
    return Request(body, {"Content-Type": f"{kind}; charset=utf-8", **_bearer(token)})


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _cloud_event(message: Message) -> dict[str, Any]:
    collection = f"/apis/{API_VERSION}/namespaces/{message.namespace}/incidents"
    return {
        "specversion": "1.0",
        "id": message.id,
        "source": f"{collection}/{message.incident}",
        "type": f"io.kcover.incident.{message.phase.lower()}",
        "subject": f"{message.kind}/{message.job}",
        "time": message.time,
        "datacontenttype": _JSON,
        "data": fields_of(message),
    }


def _slack(message: Message) -> dict[str, Any]:
    lines = [f"*{_slack_text(message.summary)}*", *map(_slack_text, lines_of(message))]
    text = "\n".join(lines)[:_MOST_SECTION]
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text}}
    return {"text": _slack_text(message.summary), "blocks": [section]}


def _slack_text(text: str) -> str:
    # the three characters with which a text could mention a channel or hide an address
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _teams(message: Message) -> dict[str, Any]:
    # a TextBlock would read Markdown, and so a link that a tenant wrote as the owner of a job
    def block(text: str, **more: object) -> dict[str, Any]:
        return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **more}]}

    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            block(message.summary, weight="Bolder", size="Medium"),
            *(block(line) for line in lines_of(message)),
        ],
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {
        "type": "message",
        "attachments": [{"contentType": kind, "contentUrl": None, "content": card}],
    }


def _alertmanager(message: Message) -> list[dict[str, Any]]:
    # these identify the alert, also when it is resolved
    labels = {
        "alertname": "KcoverIncident",
        "severity": "warning",
        "namespace": message.namespace,
        "training_job": message.job,
        "incident": message.incident,
    }
    notes = {
        "summary": message.summary,
        "description": "\n".join(lines_of(message)),
        "verdict": message.verdict,
        "cause": message.cause,
        "where": message.where,
        "node": message.node,
    }
    # without an end time, Alertmanager would resolve it after its resolve_timeout
    lasts_s = 0.0 if message.is_resolved else ALERT_LASTS_S
    return [
        {
            "labels": labels,
            "annotations": {key: value for key, value in notes.items() if value},
            "startsAt": message.since or message.time,
            "endsAt": rfc3339.to_text(rfc3339.from_text(message.time) + lasts_s),
        }
    ]


def _pagerduty(message: Message, routing_key: str) -> dict[str, Any]:
    # all phases of an incident are the same alert there
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "dedup_key": message.id.rpartition("/")[0],
        "event_action": "resolve" if message.is_resolved else "trigger",
    }
    if not message.is_resolved:
        event["payload"] = {
            "summary": message.summary[:_MOST_SUMMARY],
            "source": message.node or f"{message.namespace}/{message.job}",
            "severity": "error",
            "timestamp": message.time,
            "component": message.job,
            "group": message.namespace,
            "class": f"{message.verdict} {message.cause}".strip(),
            "custom_details": fields_of(message),
        }
    return event


_BODIES: Mapping[MessageForm, Callable[[Message], Any]] = {
    MessageForm.WEBHOOK: fields_of,
    MessageForm.CLOUD_EVENTS: _cloud_event,
    MessageForm.SLACK: _slack,
    MessageForm.TEAMS: _teams,
    MessageForm.ALERTMANAGER: _alertmanager,
}


def mail_of(target: NotifyTarget, message: Message, recipients: tuple[str, ...]) -> EmailMessage:
    """The mail; its Message-ID is equal for the same phase of the same incident."""
    mail = EmailMessage()
    mail["Subject"] = f"[kcover] {message.summary}"[:250]
    mail["From"] = target.sender
    mail["To"] = ", ".join(recipients)
    domain = target.sender.rpartition("@")[2]
    mail["Message-ID"] = f"<{message.id.replace('/', '.')}.{target.name}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("\n".join([message.summary, "", *lines_of(message), ""]))
    return mail
