"""The FaultPolicies of a cluster, kept small: as text, and parsed when a pod of their namespace is looked up. Pure.

Every agent and controller receives every policy, and any account that may edit objects in a namespace may create
any number of them. Decoded, a policy of 8 KiB takes 65 KiB.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from kcover_ebpf.api.fault_policy import (
    MOST_BYTES,
    FaultPolicy,
    NamedPolicy,
    Selector,
    observed_only,
    policy_of,
    refused,
)
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.shares import Shares
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError, OverBound

MOST_POLICIES = 100
"""The most policies of one namespace: the first ones by name, which take precedence."""
_MOST_ALL_BYTES = 64 << 20
_MOST_OF_ONE_BYTES = MOST_POLICIES * (MOST_BYTES + 256)
_DECODED_NAMESPACES = 64
_REFUSED_NAMES = 200


@dataclass(slots=True)
class _Namespace:
    texts: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Policy name -> (specification as JSON, whether it is valid)."""
    windows_s: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Names of policies that are not kept."""


class PolicyStore:
    """Not thread-safe: used under the owner's lock."""

    def __init__(
        self,
        on_bad: Callable[[str], None] = lambda _: None,
        on_over: Callable[[OverBound], None] = lambda _: None,
        *,
        observes_unread: bool = False,
    ) -> None:
        """`on_bad`, `on_over`: called with the error of a policy, and with one that is not kept.

        `observes_unread`: pods that an invalid or dropped policy may select are only observed. Otherwise such a
        policy has no effect.
        """
        self._on_bad, self._on_over, self._observes_unread = on_bad, on_over, observes_unread
        self._namespaces: dict[str, _Namespace] = {}
        self._shares = Shares(_MOST_ALL_BYTES, _MOST_OF_ONE_BYTES)
        self._decoded: OrderedDict[str, tuple[NamedPolicy, ...]] = OrderedDict()

    def set(self, api: Mapping[str, Any]) -> str | None:
        """Take a policy as the API server sends it; returns its namespace if anything of it changed."""
        namespace, name, uid = _identity(api)
        kept = self._namespaces.setdefault(namespace, _Namespace())
        before = kept.texts.get(name)
        read = self._read(api)
        if read is None:
            return self.remove(api)
        policy, text, is_readable = read
        if before == (text, is_readable):
            return None
        self._drop(namespace, name)
        if (why := self._no_room(namespace, name, len(text))) is not None:
            self._refuse(namespace, name, uid, why)
            return namespace
        kept.refused.discard(name)
        kept.texts[name] = text, is_readable
        kept.windows_s[name] = policy.policy.restarts.window_seconds
        return namespace

    def _no_room(self, namespace: str, name: str, size_bytes: int) -> str | None:
        """Make room for a policy; returns why there is none, else None."""
        texts = self._namespaces[namespace].texts
        if len(texts) >= MOST_POLICIES:
            if name > (last := max(texts)):
                return f"its namespace has more than {MOST_POLICIES} policies"
            self._drop(namespace, last)
            self._refuse(
                namespace, last, "", f"its namespace has more than {MOST_POLICIES} policies"
            )
        if not self._shares.take(f"{namespace}/{name}", namespace, size_bytes + 256):
            return f"all policies take more than {_MOST_ALL_BYTES >> 20} MiB"
        return None

    def _refuse(self, namespace: str, name: str, uid: str, why: str) -> None:
        kept = self._namespaces[namespace]
        if len(kept.refused) < _REFUSED_NAMES:
            kept.refused.add(name)
        about = {
            "apiVersion": API_VERSION,
            "kind": "FaultPolicy",
            "namespace": namespace,
            "name": name,
            "uid": uid,
        }
        self._on_over(OverBound("policies", about, f"{why}: it does not hold"))

    def _read(self, api: Mapping[str, Any]) -> tuple[NamedPolicy, str, bool] | None:
        """The policy, the text to keep, and whether it is valid; None for one without effect."""
        spec = api.get("spec") or {}
        try:
            return policy_of(api), _text(spec), True
        except ObjectError as error:
            if not self._observes_unread:
                self._on_bad(str(error))
                return None
            self._on_bad(f"{error}; its pods are observed only")
        selector = spec.get("selector") if isinstance(spec, Mapping) else None
        text = _text({"selector": selector} if selector is not None else {})
        # without a readable selector, it may select any pod of the namespace
        return refused(api), text if len(text) <= MOST_BYTES else "{}", False

    def remove(self, api: Mapping[str, Any]) -> str | None:
        """Remove a policy; returns its namespace if it was kept."""
        namespace, name, _ = _identity(api)
        kept = self._namespaces.get(namespace)
        if kept is None:
            return None
        was_there = name in kept.texts or name in kept.refused
        self._drop(namespace, name)
        kept.refused.discard(name)
        if not kept.texts and not kept.refused:
            del self._namespaces[namespace]
        return namespace if was_there else None

    def _drop(self, namespace: str, name: str) -> None:
        kept = self._namespaces[namespace]
        kept.texts.pop(name, None)
        kept.windows_s.pop(name, None)
        self._shares.drop(f"{namespace}/{name}")
        self._decoded.pop(namespace, None)

    def of(self, namespace: str) -> tuple[NamedPolicy, ...]:
        """The policies in force in a namespace."""
        found = self._decoded.get(namespace)
        if found is None:
            found = self._decoded[namespace] = tuple(self._decode(namespace))
            if len(self._decoded) > _DECODED_NAMESPACES:
                self._decoded.popitem(last=False)
        return found

    def _decode(self, namespace: str) -> list[NamedPolicy]:
        kept = self._namespaces.get(namespace)
        if kept is None:
            return []
        found = []
        for name, (text, is_readable) in kept.texts.items():
            api = {"metadata": {"namespace": namespace, "name": name}, "spec": json.loads(text)}
            found.append(policy_of(api) if is_readable else refused(api))
        if kept.refused and self._observes_unread:
            # the first by name: the policies that are not kept may have allowed less than the others
            found.append(NamedPolicy(namespace, "", observed_only(Selector())))
        return found

    def named(self, namespace: str, name: str) -> NamedPolicy | None:
        """The policy with this name; None if it is not kept."""
        return next((policy for policy in self.of(namespace) if policy.name == name), None)

    @property
    def longest_window_s(self) -> int:
        """The longest window of restart budgets of all policies; the default's if there is no policy."""
        windows_s = (
            max(namespace.windows_s.values(), default=0) for namespace in self._namespaces.values()
        )
        return max([FaultPolicy().restarts.window_seconds, *windows_s])


def _identity(api: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = api.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    namespace, name, uid = (str(metadata.get(key, "")) for key in ("namespace", "name", "uid"))
    return namespace, name, uid


def _text(spec: object) -> str:
    return json.dumps(spec, separators=(",", ":"), sort_keys=True)
