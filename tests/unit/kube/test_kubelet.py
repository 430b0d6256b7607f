"""A kubelet that is asked for checkpoints: who we are, what it says, and whom we believe."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.errors import ApiError
from kcover_ebpf.kube.access import PodAccess
from kcover_ebpf.kube.kubelet import Kubelet
from tests.unit.support.certificates import certificate
from tests.unit.support.fake_api_server import Answer, FakeApiServer, Request, serving

PATH = "/var/lib/kubelet/checkpoints/checkpoint-llm-0_ml-main-2026.tar"
ANSWERS = {
    "/checkpoint/ml/llm-0/main": Answer(200, {"items": [PATH]}),
    "/checkpoint/ml/llm-1/main": Answer(500, {"message": "CRIU is\n not installed"}),
    "/checkpoint/ml/llm-2/main": Answer(200, ["?"]),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeApiServer]:
    certificate(tmp_path)
    (tmp_path / "token").write_text("secret")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key.pem")

    def answer(request: Request) -> Answer:
        return ANSWERS.get(request.path, Answer(404, {}))

    with serving(answer, context) as running:
        yield running


def kubelet(server: FakeApiServer, folder: Path) -> Kubelet:
    environ = {"KUBERNETES_SERVICE_HOST": "api.invalid"}
    return Kubelet(PodAccess(folder, environ), server.url.removeprefix("https://"))


def test_kubelet__it_is_asked_as_ourselves_and_says_where_it_wrote(
    server: FakeApiServer, tmp_path: Path
) -> None:
    assert kubelet(server, tmp_path).checkpoint("ml", "llm-0", "main", 5.0) == (PATH,)
    (request,) = server.requests
    assert (request.method, request.headers["Authorization"]) == ("POST", "Bearer secret")


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ("llm-1", 'answers 500: {"message": "CRIU is'),
        ("llm-2", "answer is invalid"),
        ("../../pods", "answers 404"),
    ],
)
def test_kubelet__a_refusal_has_its_own_words(
    pod: str, why: str, server: FakeApiServer, tmp_path: Path
) -> None:
    with pytest.raises(ApiError, match=why):
        kubelet(server, tmp_path).checkpoint("ml", pod, "main", 5.0)
    assert all(request.path.count("/") == 4 for request in server.requests)


def test_kubelet__one_without_a_certificate_of_the_cluster_gets_no_token(
    server: FakeApiServer, tmp_path: Path
) -> None:
    certificate(tmp_path / "other")
    (tmp_path / "ca.crt").write_bytes((tmp_path / "other/ca.crt").read_bytes())
    with pytest.raises(ApiError, match="certificate"):
        kubelet(server, tmp_path).checkpoint("ml", "llm-0", "main", 5.0)
    assert server.requests == []


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.7", "https://10.0.0.7:10250"),
        ("10.0.0.7:10251", "https://10.0.0.7:10251"),
        ("fd00::7", "https://[fd00::7]:10250"),
        ("[fd00::7]:10251", "https://[fd00::7]:10251"),
    ],
)
def test_kubelet__its_port_is_the_usual_one_unless_it_is_said(address: str, url: str) -> None:
    asked: list[str | None] = []

    class FakeAccess(PodAccess):
        def __init__(self) -> None: ...

        def pool(self, url: str | None = None) -> None:
            asked.append(url)

    Kubelet(FakeAccess(), address)
    assert asked == [url]
