"""Masks credentials in the text of a log before it is kept, if their form or name reveals them.

Pure. Programs print their configuration, failed requests and commands. The ends of their logs are then fetched,
copied to a store and shown on a page. A secret with neither a telling name next to it nor a distinctive form is not
recognised.
"""

from __future__ import annotations

import re2

MASK = "[masked]"
_CONTROL = re2.compile(
    r"(?:\x1b|\\u001b)\[[0-?]*[ -/]*[@-~]"  # colours and the cursor (ECMA-48), in a record of Docker too
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b[ -/]*[0-Z\\^-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
"""Control characters that may command a terminal, with their parameters. They may be between a name and its
value, and a kept log may be read in a terminal."""
_KEY = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----"
_PRIVATE_KEY = rf"(?s){_KEY}.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)"
"""Also matches a key whose end is missing."""
_FORMS = (
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # Amazon
    r"\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}",  # Google
    r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"\bgh[opsur]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}",
    r"\bsk-[\w-]{20,}|\bnvapi-[\w-]{20,}|\bpypi-[\w-]{40,}|\bnpm_[A-Za-z0-9]{30,}",
    r"\bdckr_pat_[\w-]{20,}|\bxox[abeoprs]-[\w-]{10,}|hooks\.slack\.com/services/[\w/]+",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]+)?",  # JSON Web Token
)
_IN_ADDRESS = r"(\b[a-z][a-z0-9+.-]*://[^\s/:@\"']*:)([^\s/@\"']+)@"
_SIGNED = r"(?i)([?&](?:sig|signature|x-amz-(?:signature|credential|security-token)|x-goog-signature)=)([^&\s\"']+)"
_VALUE = r"(\\*\"(?:[^\"\n]+)\"?|'[^'\n]+'?|[^\s\"',;&]+)"
_HEADER = rf"(?i)(authorization\\*[\"']?\s*[=:]\s*\\*[\"']?(?:[a-z]+\s+)?|\bbearer\s+){_VALUE}"
_NAME = (
    r"(?:passwords?|passwd|passphrase|secrets?|credentials?|auth_?token|tokens?|api[_-]?keys?|access[_-]?keys?"
    r"|secret[_-]?keys?|private[_-]?keys?|account[_-]?key|encryption[_-]?key|webhook)(?:[_-](?:id|key|value|b64|base64))?"
)
_NAMED = rf"(?i)({_NAME}\\*[\"']?\s*(?:=>|[=:])\s*){_VALUE}"
_VARIABLE = rf"(\b[A-Z][A-Z0-9]*_(?:PASS|PWD|PW)\\*[\"']?\s*(?:=>|[=:])\s*){_VALUE}"
"""Capitals alone: a forward pass has numbers that explain a fault."""
_COOKIE = r"(?i)(cookie\\*[\"']?\s*[=:]\s*\\*[\"']?)([^\"'\\\n]+)"
_USER = r"(\bcurl\b[^\n]*?\s(?:-[uU]|--(?:proxy-)?user)[\s=]*[\"']?[^\s:\"']*:)([^\s\"'\\]+)"
_ARGUMENT = rf"(?i)(--?[\w-]*{_NAME}\s+){_VALUE}"
_NOTHING = re2.compile(r"(?i)\\*[\"']?(?:none|null|true|false|\*+|\[masked\].*)\\*[\"']?[\])}]*")
_NUMBER = re2.compile(r"(?i)[\[(]*[-+]?[\d.,_]+(?:e[-+]?\d+)?[kmbt]?(?:/s)?[\])}]*")

_WHOLE = tuple(map(re2.compile, (_PRIVATE_KEY, "|".join(_FORMS))))
_AFTER = tuple(map(re2.compile, (_SIGNED, _HEADER, _NAMED, _VARIABLE, _COOKIE, _USER, _ARGUMENT)))
_ADDRESS = re2.compile(f"(?i){_IN_ADDRESS}")


def masked(text: str) -> str:
    """The text with `MASK` in place of each recognised credential, and without colours and other control sequences.

    Its lines stay, except those of a key.
    """
    text = _CONTROL.sub("", text)
    for pattern in _WHOLE:
        text = pattern.sub(MASK, text)
    text = _ADDRESS.sub(rf"\1{MASK}@", text)
    for pattern in _AFTER:
        text = pattern.sub(_without_value, text)
    return text


def end_of(text: str, most: int) -> str:
    """The last complete lines of a masked text, at most `most` characters; a longer line is cut."""
    if len(text) <= most:
        return text
    end = text[-most:]
    return end[end.find("\n", 0, most - 1) + 1 :]


def _without_value(match: re2._Match[str]) -> str:
    said, value = match[1], match[2]
    # numbers of tokens of a language model are harmless; a password may be a number
    is_count = "token" in said.lower() and _NUMBER.fullmatch(value)
    return match[0] if is_count or _NOTHING.fullmatch(value) else f"{said}{MASK}"
