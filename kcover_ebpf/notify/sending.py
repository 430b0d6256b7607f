"""Makes one attempt to deliver a message.

No redirect is followed, and error texts contain neither addresses nor secrets.
"""

from __future__ import annotations

import http.client
import smtplib
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, NoReturn

from kcover_ebpf.errors import NotSent
from kcover_ebpf.notify.forms import Request, mail_of, request_of
from kcover_ebpf.notify.message import Message
from kcover_ebpf.notify.target import PAGERDUTY, MessageForm, NotifyTarget, Security, wrong_address
from kcover_ebpf.tunables.sending import SEND_S

_TRY_AGAIN = frozenset({408, 425, 429})
"""HTTP status codes 4xx after which a later attempt may succeed."""
_MOST_SECRET_BYTES = 4096


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects could be used to make us contact any address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Sender:
    """Delivers to targets. Secrets are reread for each message, because they may be rotated."""

    def __init__(self, secrets: Path | None, timeout_s: float = SEND_S) -> None:
        """`secrets`: folder with one file for each key of the operator's Secret."""
        self._secrets, self._timeout_s = secrets, timeout_s
        self._opener = urllib.request.build_opener(_NoRedirect)

    def send(self, target: NotifyTarget, message: Message) -> bool:
        """Deliver a message; False if there is no recipient. Raises `NotSent`."""
        if target.form is MessageForm.EMAIL:
            recipients = target.recipients(message.owner)
            if recipients:
                self._mail(target, mail_of(target, message, recipients))
            return bool(recipients)
        self.ask(target, lambda secret: request_of(target, message, secret))
        return True

    def ask(self, target: NotifyTarget, make: Callable[[str], Request]) -> None:
        """POST the request that `make` returns for the content of the target's key file. Raises `NotSent`."""
        secret = self._secret(target.key) if target.key else ""
        url = self._secret(target.url_key) if target.url_key else target.url or PAGERDUTY
        if wrong := wrong_address(url):
            raise NotSent(wrong, is_final=True)
        request = make(secret)
        self._post(f"{url.rstrip('/')}{request.path}" if request.path else url, request)

    def _secret(self, key: str) -> str:
        if self._secrets is None:
            raise NotSent(f"there is no Secret with a key {key}", is_final=True)
        try:
            with (self._secrets / key).open("rb") as file:
                return file.read(_MOST_SECRET_BYTES).decode("ascii").strip()
        except OSError as error:
            raise NotSent(f"key {key} of the Secret: {error.strerror}") from None
        except UnicodeDecodeError:
            raise NotSent(f"key {key} of the Secret is not plain text", is_final=True) from None

    def _post(self, url: str, request: Request) -> None:
        asked = urllib.request.Request(url, request.body, dict(request.headers), method="POST")
        try:
            with self._opener.open(asked, timeout=self._timeout_s) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
            error.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            _fail(error)
        if not 200 <= status < 300:
            final = status < 500 and status not in _TRY_AGAIN
            raise NotSent(f"it answered {status}", is_final=final)

    def _mail(self, target: NotifyTarget, mail: EmailMessage) -> None:
        host, port = target.host_port
        password = self._secret(target.key) if target.user else ""
        tls = ssl.create_default_context()
        try:
            with (
                smtplib.SMTP_SSL(host, port, timeout=self._timeout_s, context=tls)
                if target.security is Security.TLS
                else smtplib.SMTP(host, port, timeout=self._timeout_s)
            ) as server:
                if target.security is Security.STARTTLS:
                    server.starttls(context=tls)
                if target.user:
                    server.login(target.user, password)
                server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            raise NotSent(
                f"the mail server answered {error.smtp_code}", error.smtp_code >= 500
            ) from None
        except smtplib.SMTPRecipientsRefused as error:
            # 450: possibly later (greylisting)
            is_final = all(code >= 500 for code, _ in error.recipients.values())
            raise NotSent("the mail server accepts no recipient", is_final) from None
        except (OSError, smtplib.SMTPException) as error:
            _fail(error)


def _fail(error: Exception) -> NoReturn:
    reason = getattr(error, "reason", error)
    kind = type(reason).__name__ if isinstance(reason, Exception) else type(error).__name__
    said = getattr(reason, "strerror", None) or ""
    raise NotSent(f"no answer: {kind}{f', {said}' if said else ''}") from None
