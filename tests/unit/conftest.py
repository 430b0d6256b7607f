"""Whatever the tests make the judge say must be in the table of what there is to say."""

from typing import Any

import pytest

from kcover_ebpf.diagnosis.evidence import snapshot
from kcover_ebpf.model import verdict


@pytest.fixture(scope="session", autouse=True)
def pairs_are_in_the_table() -> None:
    make = snapshot.Finding.__init__

    def checked(self: snapshot.Finding, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        assert self.cause in verdict.CAUSES[self.kind], (self.kind, self.cause)

    snapshot.Finding.__init__ = checked  # type: ignore[method-assign]
