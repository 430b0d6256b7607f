"""libFuzzer over one target in this process."""

from __future__ import annotations

import sys

import atheris

from tests.fuzz.mutate import mutated
from tests.fuzz.target import Target, run

with atheris.instrument_imports(include=["kcover_ebpf", "tomllib"]):
    # imported here for the first time: what is imported before is not instrumented
    from tests.fuzz import table

TARGETS = table.TARGETS


def fuzz(target: Target, arguments: list[str]) -> None:
    """Never returns: libFuzzer ends the process. `arguments`: its options, and folders of inputs."""

    def mutate(data: bytes, most_bytes: int, seed: int) -> bytes:
        return mutated(data, most_bytes, seed, lambda raw: bytes(atheris.Mutate(raw, most_bytes)))

    atheris.Setup(
        [sys.argv[0], *arguments],
        lambda data: run(target, data),
        **({"custom_mutator": mutate} if target.is_json else {}),
    )
    atheris.Fuzz()
