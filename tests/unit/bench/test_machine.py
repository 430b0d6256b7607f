"""What a bench says about the machine it ran on."""

import pytest

from bench import machine


@pytest.mark.parametrize(
    ("release", "series"),
    [
        ("6.18.44-built-here", "6.18"),
        ("5.10.0-28-amd64", "5.10"),
        ("7.3.4+deb13-amd64", "7.3"),
        ("6.18", "6.18"),
        ("unknown", "unknown"),
    ],
)
def test_kernel_series__a_local_build_has_no_name_outside(release: str, series: str) -> None:
    assert machine.kernel_series(release) == series


@pytest.mark.parametrize(
    ("model", "text"),
    [("AMD EPYC", "4 cores (AMD EPYC), Linux 6.1"), ("", "4 cores, Linux 6.1")],
    ids=["with a name", "a CPU without a name"],
)
def test_described__cores_cpu_and_kernel(
    model: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cpu_model", lambda: model)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("platform.release", lambda: "6.1.0-28-amd64")
    assert machine.described() == text
