"""The driver functions that the sensor names are in really built drivers, under their own names."""

from __future__ import annotations

import re

import pytest

from kcover_ebpf.kernel.attach_points import variants
from testbed.machines.packages import ROOT, Kernel, Missing
from tests.vm import drivers

NAMED = re.findall(r'SEC\("kprobe/(\w+)"\)', (ROOT / "bpf/gpu.bpf.c").read_text())


pytestmark = pytest.mark.family("targets")


@pytest.fixture(scope="module", params=drivers.DRIVERS, ids=lambda driver: driver.name)
def table(request: pytest.FixtureRequest) -> dict[str, str]:
    driver: Kernel = request.param
    try:
        return drivers.symbols(driver)
    except Missing as reason:
        pytest.skip(f"needs the driver {driver.name}: {reason}")


@pytest.mark.parametrize("name", NAMED)
def test_a_function_that_is_probed(table: dict[str, str], name: str) -> None:
    lines = [f"0 {kind} {symbol}" for symbol, kind in table.items()]
    assert table.get(name) in {"t", "T"} or len(variants(name, lines)) == 1
