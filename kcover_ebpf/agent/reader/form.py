"""JSON form of the dataclasses that the agent and its confined readers exchange."""

from __future__ import annotations

from kcover_ebpf.api.codec import Codec, Omit

_CODEC = Codec(key=str, omit=Omit.DEFAULTS)

encode = _CODEC.encode
"""Dataclass to JSON object."""
decode = _CODEC.read
"""JSON object to dataclass; raises `WrongValue`."""
