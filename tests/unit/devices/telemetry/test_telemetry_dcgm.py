"""Readings of a dcgm-exporter: a server whose page has the exporter's form."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kcover_ebpf.devices.telemetry.dcgm_source import DcgmSource, checked
from kcover_ebpf.devices.telemetry.helper import HelperOptions, line_of, reader_of
from kcover_ebpf.errors import UsageError
from tests.unit.support.dcgm_pages import OTHER, OWN, page


class FakeExporter:
    def __init__(self) -> None:
        self.body, self.status = page().encode(), 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def exporter() -> Iterator[FakeExporter]:
    made = FakeExporter()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_dcgm_source__the_fields_of_the_exporter_are_ours(exporter: FakeExporter) -> None:
    (found,) = DcgmSource(exporter.url, [OWN]).readings()
    assert (found.gpu, found.uuid, found.pci_bus_id) == ("0", OWN, "00000000:5D:00.0")
    assert (found.namespace, found.pod, found.model) == ("team", "train-0", "Stub")
    assert (found.utilization, found.memory_used_bytes) == (0.97, 2 << 30), "not those of a part"
    assert (found.power_w, found.sm_clock_hz, found.temperature_c) == (421.5, 1_755_000_000, 61.0)
    assert (found.throttle, found.memory_utilization, found.ecc_corrected_count) == (4, None, None)
    assert found.boottime_ns > 0


@pytest.mark.parametrize(
    ("parts_mib", "total_mib"),
    [
        ({"TOTAL": 81559, "USED": 2048, "FREE": 78872, "RESERVED": 638}, 81559),
        ({"USED": 2048, "FREE": 78872, "RESERVED": 639}, 81559),
        ({"USED": 2048, "FREE": 78872}, 80920),
        ({"USED": 2048, "FREE": float("nan")}, None),
        ({"FREE": 78872, "RESERVED": 639}, None),
    ],
)
def test_dcgm_source__the_memory_is_the_sum_of_its_parts_where_the_total_is_not_exported(
    exporter: FakeExporter, parts_mib: dict[str, float], total_mib: int | None
) -> None:
    lines = [f'DCGM_FI_DEV_FB_{name}{{UUID="{OWN}"}} {mib}\n' for name, mib in parts_mib.items()]
    exporter.body = "".join(lines).encode()
    (found,) = DcgmSource(exporter.url, [OWN]).readings()
    assert found.memory_total_bytes == (None if total_mib is None else total_mib << 20)


def test_dcgm_source__rates_are_added_up(
    exporter: FakeExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: clock_s)
    source = DcgmSource(exporter.url, [OWN])
    assert [reading.pcie_sent_bytes for reading in source.readings()] == [0]
    clock_s += 10
    assert [reading.pcie_sent_bytes for reading in source.readings()] == [10_000_000]


def test_line_of__a_rate_beyond_any_number_is_not_added_up(
    exporter: FakeExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: clock_s)
    source = DcgmSource(exporter.url, [OWN])
    source.readings()
    clock_s += 10
    labels = f'UUID="{OWN}"'
    exporter.body = f"DCGM_FI_PROF_PCIE_TX_BYTES{{{labels}}} 1.7e308\n".encode()
    line = line_of(source.readings)
    assert (len(line.gpus), line.trouble) == (1, "")


def test_dcgm_source__the_gpus_of_another_node_are_not_ours(exporter: FakeExporter) -> None:
    exporter.body = (page(OTHER) + page()).encode()
    (found,) = DcgmSource(exporter.url, [OWN]).readings()
    assert found.uuid == OWN
    exporter.body = page(OTHER).encode()
    with pytest.raises(ValueError, match="those of another node"):
        DcgmSource(exporter.url, [OWN]).readings()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, b"", "HTTP status 503"),
        (200, b"x" * 5_000_000, "longer than 4194304 bytes"),
        (200, b"DCGM_FI_DEV_GPU_UTIL{ 9\n", "dcgm-exporter: "),
        (200, b'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-7c0e-0"} much\n', "dcgm-exporter: "),
    ],
)
def test_line_of__what_is_no_exporter_is_reported(
    exporter: FakeExporter, status: int, body: bytes, words: str
) -> None:
    exporter.status, exporter.body = status, body
    line = line_of(DcgmSource(exporter.url, [OWN]).readings)
    assert line.gpus == ()
    assert words in line.trouble


def test_line_of__no_server() -> None:
    line = line_of(DcgmSource("http://127.0.0.1:9/metrics", [OWN]).readings)
    assert "Connection refused" in line.trouble


def test_reader_of__the_gpus_of_this_node_are_those_of_its_driver(
    exporter: FakeExporter, tmp_path: Path
) -> None:
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:5d:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"GPU UUID: \t {OWN}\nDevice Minor: \t 0\n")
    read = reader_of(HelperOptions(1.0, exporter.url, str(tmp_path)))
    assert [reading.uuid for reading in read()] == [OWN]


@pytest.mark.parametrize("url", ["", "exporter:9400", "https://a/metrics", "http://", "http://a:x"])
def test_checked__a_url_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match=r"--it .* write http://ADDRESS:9400/metrics"):
        checked(url, "--it")
