"""The operator's list of targets: where messages may be sent, and in which format.

Pure. Tenants cannot set an address: a FaultPolicy names a target, and this list says which namespaces may use it.
Secrets (an address with a token, a key, a password) are given as the name of a file, which is read when a message
is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from string import Template
from typing import Any
from urllib.parse import urlsplit

from kcover_ebpf.api.codec import decode, wire
from kcover_ebpf.api.fault_policy import ALL_ENDS
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, PolicyError
from kcover_ebpf.tunables.sending import LONGEST_METRICS_S, SHORTEST_METRICS_S

PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"
"""Address of PagerDuty's Events API v2."""
_MOST_TARGETS = 32
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = re.compile(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}")
"""Allowed key of a Secret; never a path."""
_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,8}")
_SERVER = re.compile(r"([A-Za-z0-9.-]{1,253}):([0-9]{1,5})")


class MessageForm(Enum):
    """Message format of a target, named after the product."""

    WEBHOOK = "Webhook"
    CLOUD_EVENTS = "CloudEvents"
    SLACK = "Slack"
    TEAMS = "Teams"
    ALERTMANAGER = "Alertmanager"
    PAGERDUTY = "PagerDuty"
    OPEN_TELEMETRY = "OpenTelemetry"
    """A collector: it receives incidents as traces, and the controller's metrics."""
    EMAIL = "Email"

    @property
    def is_alert(self) -> bool:
        """True if the target pages a person: a recovery is sent there only if a rule asks for it."""
        return self in (MessageForm.ALERTMANAGER, MessageForm.PAGERDUTY)


class Security(Enum):
    """Encryption of the connection to a mail server."""

    STARTTLS = "StartTLS"
    TLS = "TLS"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """One target; which fields are used depends on its format."""

    name: str
    form: MessageForm
    url: str = ""
    url_key: str = ""
    """Name of the file with the address, if the address is secret."""
    key: str = ""
    """Name of the file with the bearer token, PagerDuty's routing key or the password of `user`."""
    template: str = ""
    """Body of a webhook instead of ours: JSON with quoted ${names} from `message.WORDS`."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose policies may name it; empty: all."""
    every_incident: bool = False
    """True to send all incidents of its namespaces there, whatever their policies say."""
    metrics_s: int = field(default=0, metadata=wire("metricsSeconds"))
    """Seconds between two pushes of the controller's metrics to a collector; 0: never."""
    server: str = ""
    """Mail server as HOST:PORT."""
    security: Security = Security.STARTTLS
    user: str = ""
    sender: str = ""
    to: tuple[str, ...] = ()
    owner_domains: tuple[str, ...] = ()
    """Mail is also sent to the owner of the job if the address is in one of these domains."""

    @property
    def ends(self) -> frozenset[Phase]:
        """End phases; the first is sent if a rule names no phase."""
        return ALL_ENDS - {Phase.RECOVERED} if self.form.is_alert else ALL_ENDS

    def serves(self, namespace: str) -> bool:
        """True if incidents of this namespace may be sent to it."""
        return not self.namespaces or namespace in self.namespaces

    @property
    def host_port(self) -> tuple[str, int]:
        """Host and port of the mail server."""
        host, _, port = self.server.rpartition(":")
        return host, int(port)

    def recipients(self, owner: str | None) -> tuple[str, ...]:
        """Recipients of a mail; empty if the only one would be the unknown owner."""
        domain = (owner or "").rpartition("@")[2].lower()
        is_ours = domain in self.owner_domains and _ADDRESS.fullmatch(owner or "") is not None
        return tuple(dict.fromkeys((*self.to, *((owner,) if owner and is_ours else ()))))


@dataclass(frozen=True, slots=True)
class _Targets:
    targets: tuple[NotifyTarget, ...] = field(default_factory=tuple)


def targets_of(
    table: Mapping[str, Any], where: str, words: frozenset[str]
) -> tuple[NotifyTarget, ...]:
    """The targets in an operator's file; raises `PolicyError` with one line that begins with `where`.

    `words`: names that a template may contain.
    """
    rows = table.get("targets")
    if not isinstance(rows, list) or set(table) - {"targets"}:
        raise PolicyError(f"{where}: the only key is targets, a list")
    if len(rows) > _MOST_TARGETS:
        raise PolicyError(f"{where}: at most {_MOST_TARGETS} targets")
    try:
        targets = decode(_Targets, table).targets
    except ObjectError as error:
        raise PolicyError(f"{where}: {error}") from error
    known = {
        "name",
        "form",
        "url",
        "urlKey",
        "key",
        "template",
        "namespaces",
        "everyIncident",
        "metricsSeconds",
    }
    known |= {"server", "security", "user", "sender", "to", "ownerDomains"}
    for row, target in zip(rows, targets, strict=True):
        place = f"{where}: target {target.name!r}"
        if unknown := set(row) - known:
            raise PolicyError(f"{place}: unknown key {min(unknown)!r}")
        if wrong := _wrong(target, words):
            raise PolicyError(f"{place}: {wrong}")
    if len({target.name for target in targets}) < len(targets):
        raise PolicyError(f"{where}: two targets have one name")
    return targets


def _wrong(target: NotifyTarget, words: frozenset[str]) -> str | None:
    if not _NAME.fullmatch(target.name):
        return "a name has lower-case letters, digits and dashes"
    keys = [key for key in (target.url_key, target.key) if key]
    if not all(_KEY.fullmatch(key) for key in keys):
        return "urlKey and key are keys of the Secret"
    if target.metrics_s and target.form is not MessageForm.OPEN_TELEMETRY:
        return "metricsSeconds belongs to the form OpenTelemetry"
    if target.metrics_s and not SHORTEST_METRICS_S <= target.metrics_s <= LONGEST_METRICS_S:
        return f"metricsSeconds is 0, or {SHORTEST_METRICS_S} to {LONGEST_METRICS_S}"
    if target.form is MessageForm.EMAIL:
        return _wrong_mail(target)
    if target.server or target.user or target.sender or target.to or target.owner_domains:
        return "server, user, sender, to and ownerDomains belong to the form Email"
    if target.template:
        return _wrong_template(target, words)
    return _wrong_url(target)


def _wrong_url(target: NotifyTarget) -> str | None:
    if target.form is MessageForm.PAGERDUTY and not target.key:
        return "key names the routing key in the Secret"
    if target.url and target.url_key:
        return "url or urlKey, not both"
    if not (target.url or target.url_key or target.form is MessageForm.PAGERDUTY):
        return "url, or urlKey where it is secret"
    return wrong_address(target.url) if target.url else None


def wrong_address(url: str) -> str | None:
    """The fault in a target's address; None if it is valid. The text does not contain the address."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if (
        not good
        or not url.isascii()
        or any(char.isspace() or not char.isprintable() for char in url)
    ):
        return "its url must begin with https:// or http:// and name a host"
    return None


def _wrong_template(target: NotifyTarget, words: frozenset[str]) -> str | None:
    if target.form is not MessageForm.WEBHOOK:
        return "template belongs to the form Webhook"
    template = Template(target.template)
    if not template.is_valid():
        return "template: a $ that is meant is written $$"
    if unknown := set(template.get_identifiers()) - words:
        return f"template: no ${{{min(unknown)}}}; there are {', '.join(sorted(words))}"
    return _wrong_url(target)


def _wrong_mail(target: NotifyTarget) -> str | None:
    found = _SERVER.fullmatch(target.server)
    if not found or not 0 < int(found[2]) < 65536:
        return "server is HOST:PORT"
    if not (target.to or target.owner_domains):
        return "to, or ownerDomains, says who gets the mail"
    if not all(_ADDRESS.fullmatch(address) for address in (target.sender, *target.to)):
        return "sender and to are addresses like gpu@example.com"
    if target.user and not target.key:
        return "key names the password of user in the Secret"
    if target.user and target.security is Security.NONE:
        return "a password is sent by StartTLS or TLS only"
    if target.url or target.url_key or target.template:
        return "url, urlKey and template do not belong to the form Email"
    return None
