"""The form of JSON in which the agent and its confined readers send each other dataclasses."""

from __future__ import annotations

from kcover_ebpf.api.codec import Codec, Omit

_CODEC = Codec(key=str, omit=Omit.DEFAULTS)

encode = _CODEC.encode
"""The JSON object of a dataclass."""
decode = _CODEC.read
"""The dataclass of a JSON object; raises `WrongValue`."""
