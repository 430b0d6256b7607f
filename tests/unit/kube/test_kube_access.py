"""An agent in a pod reaches its API server by the pod's own token and certificate, and imports no client for it."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kcover_ebpf.errors import Unreachable, UsageError
from kcover_ebpf.kube.access import Access, OfficialAccess, PodAccess
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.kube import TOKEN_S
from tests.unit.support.certificates import certificate
from tests.unit.support.fake_api_server import Answer, FakeApiServer, serving

CLIENT = """
import sys
from pathlib import Path
from kcover_ebpf.kube import access, client
client.PodAccess = lambda: access.PodAccess(Path(sys.argv[1]))
session = client.connect(is_small=True)
print(session.get("/version")["gitVersion"], "kubernetes" in sys.modules)
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    certificate(folder)
    return folder


@pytest.fixture
def server(authority: Path) -> Iterator[FakeApiServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "ca.crt", authority / "key.pem")
    with serving(lambda _: Answer(body={"gitVersion": "v1.34.0"}), context) as running:
        yield running


@pytest.fixture
def account(tmp_path: Path, authority: Path) -> Path:
    """The folder that the kubelet mounts."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("first\n")
    (folder / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    return folder


def environ(server: FakeApiServer) -> dict[str, str]:
    parts = urlsplit(server.url)
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(parts.port)}


def test_pod_access__a_request_has_the_token_that_is_there_now(
    server: FakeApiServer, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    session = ApiClient(PodAccess(account, environ(server)))
    assert session.get("/version") == {"gitVersion": "v1.34.0"}
    (account / "token").write_text("second")
    now_s += TOKEN_S
    session.get("/version")
    assert [request.headers["Authorization"] for request in server.requests] == [
        "Bearer first",
        "Bearer second",
    ]


def official(server: FakeApiServer, account: Path) -> Access:
    from kubernetes import client

    configuration = client.Configuration(host=server.url.replace("localhost", "127.0.0.1"))
    configuration.ssl_ca_cert = str(account / "ca.crt")
    return OfficialAccess(configuration)


@pytest.mark.parametrize(
    "made", [lambda server, account: PodAccess(account, environ(server)), official]
)
def test_access__a_connection_that_is_cut_in_silence_is_noticed_by_the_kernel(
    server: FakeApiServer, account: Path, made: Callable[[FakeApiServer, Path], Access]
) -> None:
    """A watch that waits sends nothing, and no read of it ends before 90 s."""
    pool = made(server, account).pool()
    connection = pool._get_conn()
    connection.connect()
    sock = connection.sock
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    idle_s, every_s, count = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle_s + every_s * count <= Policy().stopped_s
    unanswered_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert 0 < unanswered_ms <= Policy().stopped_s * 1000
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1, "as urllib3 itself"
    connection.close()


def test_pod_access__another_authority_is_not_believed(
    server: FakeApiServer, account: Path, tmp_path: Path
) -> None:
    certificate(tmp_path / "other")
    (account / "ca.crt").write_bytes((tmp_path / "other/ca.crt").read_bytes())
    session = ApiClient(PodAccess(account, environ(server)))
    with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
        session.get("/version")
    assert server.requests == []


def test_pod_access__an_address_of_ipv6_is_a_host(account: Path) -> None:
    made = PodAccess(account, {"KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert made.host == "https://[fd00::1]:443"
    assert made.pool().host == "fd00::1"


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_pod_access__without_a_token_the_error_says_how_to_get_one(
    account: Path, missing: str
) -> None:
    (account / missing).unlink()
    with pytest.raises(UsageError, match=f"{missing}.*automountServiceAccountToken"):
        PodAccess(account, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def test_pod_access__the_official_client_is_not_imported(
    server: FakeApiServer, account: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(account)],
        env={"PATH": "/usr/bin:/bin", **environ(server)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout == "v1.34.0 False\n", done.stderr
