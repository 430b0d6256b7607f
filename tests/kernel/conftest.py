from collections.abc import Iterator

import pytest

from kcover_ebpf.kernel.sampler import Kernel
from kcover_ebpf.settings import Settings


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with Kernel.open(Settings()) as opened:
        assert all(status.attached for status in opened.statuses), opened.statuses
        yield opened
        assert not opened.rejected
