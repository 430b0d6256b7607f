"""The check of other nodes: asked at once, and measured by the network that it runs in."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection import path_mtu
from kcover_ebpf.inspection.checks import peers
from tests.unit.support.inspection_hosts import found

PASS, WARN, FAIL = Result.PASS, Result.WARN, Result.FAIL


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("path", "own", "result"),
    [
        (1450, 1450, PASS),
        (1450, 1500, WARN),
        (1450, None, WARN),
        (1500, 9000, PASS),
        (1500, 1500, PASS),
        (1400, 1450, WARN),
    ],
    ids=["overlay", "smaller than the link", "several links", "jumbo", "plain", "overlay, smaller"],
)
def test_inspection_peers__the_path_is_compared_with_the_route_that_leads_to_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    port: int,
    path: int,
    own: int | None,
    result: Result,
) -> None:
    monkeypatch.setattr(peers, "_mtu", lambda _: path)
    monkeypatch.setattr(path_mtu, "mtu_to", lambda *_: own)
    one = found(peers.CHECK, tmp_path, peers=(("127.0.0.1", port),))
    assert one.result is result
    assert f"path MTU {path}" in one.evidence
    assert (f"that of the route here is {own or 1500}" in one.evidence) == (result is WARN)


def test_inspection_peers__all_are_asked_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int
) -> None:
    all_at_once, ask = threading.Barrier(6, timeout=30), socket.getaddrinfo

    def wait(host: str, *rest: object, **more: int) -> object:
        all_at_once.wait()
        return ask("127.0.0.1", *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    named = tuple((f"node-{number}", port) for number in range(6))
    evidence = found(peers.CHECK, tmp_path, peers=named).evidence
    assert sorted(line.partition(":")[0] for line in evidence.splitlines()) == [
        host for host, _ in named
    ]
    assert "no " not in evidence.partition("path MTU")[0]


@pytest.mark.parametrize("is_alone", [True, False])
def test_inspection_peers__names_that_never_resolve_fail_or_warn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int, *, is_alone: bool
) -> None:
    released, ask = threading.Event(), socket.getaddrinfo

    def hang(host: str, *rest: object, **more: int) -> object:
        if host != "127.0.0.1":
            released.wait(60)
        return ask(host, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(peers, "PEER_NAME_PATIENCE_S", 0.2)
    others = () if is_alone else (("127.0.0.1", port),)
    one = found(peers.CHECK, tmp_path, peers=(("a.invalid", 1), ("b.invalid", 1), *others))
    released.set()
    assert one.result is (FAIL if is_alone else WARN)
    assert one.evidence.count("the name has no address within 0.2 s") == 2
    assert one.advice == "check DNS"
