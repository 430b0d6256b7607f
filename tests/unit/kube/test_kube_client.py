"""What goes over the wire to an API server, and which error an answer becomes."""

import base64
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    TooLarge,
    Unreachable,
    UsageError,
)
from kcover_ebpf.kube.client import ApiClient, connect, namespace_of
from tests.unit.support.fake_api_server import Answer, FakeApiServer, Request, serving
from tests.unit.support.kubeconfigs import SECRET, kubeconfig


@pytest.fixture
def answers() -> list[Answer]:
    return []


@pytest.fixture
def server(answers: list[Answer]) -> Iterator[FakeApiServer]:
    def answer(request: Request) -> Answer:
        return answers.pop(0) if answers else Answer(body={"echo": request.path})

    with serving(answer) as running:
        yield running


@pytest.fixture
def session(server: FakeApiServer, tmp_path: Path) -> ApiClient:
    return connect(kubeconfig(tmp_path, server.url))


Call = Callable[[ApiClient], Any]
# call -> method, query, content type, body
CALLS: dict[str, tuple[Call, str, dict[str, str], str | None, Any]] = {
    "get": (lambda s: s.get("/x"), "GET", {}, None, None),
    "list": (lambda s: s.list("/x", {"limit": "5"}), "GET", {"limit": "5"}, None, None),
    "create": (lambda s: s.create("/x", {"a": 1}), "POST", {}, "application/json", {"a": 1}),
    "replace": (lambda s: s.replace("/x", {"a": 1}), "PUT", {}, "application/json", {"a": 1}),
    "merge patch": (
        lambda s: s.merge_patch("/x", {"a": None}),
        "PATCH",
        {},
        "application/merge-patch+json",
        {"a": None},
    ),
    "apply": (
        lambda s: s.apply("/x", {"metadata": {"name": "x", "labels": {}}, "spec": 1}, "me"),
        "PATCH",
        {"fieldManager": "me", "fieldValidation": "Ignore"},
        "application/json-patch+json",
        [
            {"op": "add", "path": "/metadata/labels", "value": {}},
            {"op": "add", "path": "/spec", "value": 1},
        ],
    ),
    "delete with a uid": (
        lambda s: s.delete("/x", uid="u", grace_s=1, propagation="Foreground"),
        "DELETE",
        {},
        "application/json",
        {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 1,
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": "u"},
        },
    ),
    "delete a collection": (
        lambda s: s.delete_collection("/x", "a=b"),
        "DELETE",
        {"labelSelector": "a=b"},
        "application/json",
        {"apiVersion": "v1", "kind": "DeleteOptions"},
    ),
}


@pytest.mark.parametrize(("call", "method", "query", "kind", "body"), CALLS.values(), ids=CALLS)
def test_connect__request(  # noqa: PLR0917 - one column of the table each
    call: Call,
    method: str,
    query: dict[str, str],
    kind: str | None,
    body: Any,
    session: ApiClient,
    server: FakeApiServer,
) -> None:
    assert call(session) == {"echo": "/x"}
    (sent,) = server.requests
    assert (sent.method, sent.query, sent.body) == (method, query, body)
    assert sent.headers.get("Content-Type") == kind
    assert sent.headers["Authorization"].endswith(SECRET)


def test_apply__what_is_not_there_is_made(
    session: ApiClient, server: FakeApiServer, answers: list[Answer]
) -> None:
    body = {"metadata": {"name": "x"}, "spec": {"a": 1}}
    answers += [Answer(404), Answer(body={"is": "made"})]
    assert session.apply("/all/x", body, "me") == {"is": "made"}
    changed, made = server.requests
    assert (changed.method, changed.path) == ("PATCH", "/all/x")
    assert (made.method, made.path, made.body) == ("POST", "/all", body)


def test_apply__what_another_makes_in_between_is_changed(
    session: ApiClient, server: FakeApiServer, answers: list[Answer]
) -> None:
    answers += [Answer(404), Answer(409), Answer(body={"is": "changed"})]
    body = {"metadata": {"name": "x"}, "spec": {"a": 1}}
    assert session.apply("/all/x", body, "me") == {"is": "changed"}
    assert [request.method for request in server.requests] == ["PATCH", "POST", "PATCH"]


def test_apply__a_namespace_that_is_gone(session: ApiClient, answers: list[Answer]) -> None:
    answers += [Answer(404), Answer(404)]
    with pytest.raises(NotFound):
        session.apply("/all/x", {"metadata": {"name": "x"}, "spec": {}}, "me")


ERRORS = {
    400: ApiError,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: ApiError,
    429: Unreachable,
    500: Unreachable,
    503: Unreachable,
}


@pytest.mark.parametrize(("status", "kind"), ERRORS.items())
def test_connect__error_of_a_status(
    status: int, kind: type[ApiError], session: ApiClient, answers: list[Answer]
) -> None:
    answers.append(Answer(status, {"message": "no\nway"}, {"Retry-After": "7"}))
    with pytest.raises(kind) as caught:
        session.get("/x")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.retry_after_s) == (status, 7.0)
    assert "no way" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_connect__an_answer_that_is_no_json_is_no_answer(
    session: ApiClient, answers: list[Answer]
) -> None:
    answers.append(Answer(lines=(b"<html>",)))
    with pytest.raises(Unreachable):
        session.get("/x")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(302, lines=(b"",), headers={"Location": "/login"}),
        Answer(301, {"items": []}),
        Answer(lines=(b"",)),
        Answer(body=[]),
        Answer(body=None),
    ],
)
def test_connect__what_is_no_answer_is_not_an_empty_list(
    session: ApiClient, answers: list[Answer], answer: Answer
) -> None:
    """A watch would report all objects as deleted."""
    answers.append(answer)
    with pytest.raises(Unreachable):
        session.list("/api/v1/nodes")


def test_connect__an_error_page_of_a_proxy(session: ApiClient, answers: list[Answer]) -> None:
    answers.append(Answer(502, lines=(b"<html>",)))
    with pytest.raises(Unreachable, match="502"):
        session.get("/x")


def test_connect__without_a_listener(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        session = connect(kubeconfig(tmp_path, f"http://127.0.0.1:{port}"))
        with pytest.raises(Unreachable, match="refused") as caught:
            session.get("/x")
    assert "0x" not in str(caught.value)


def test_connect__a_stream(
    session: ApiClient, server: FakeApiServer, answers: list[Answer]
) -> None:
    answers.append(Answer(lines=(b'{"type":"A"}\n\n{"ty', b'pe":"B"}\n')))
    got = list(session.stream("/x", {"resourceVersion": "5"}, 9))
    assert got == [{"type": "A"}, {"type": "B"}]
    assert server.requests[0].query == {
        "resourceVersion": "5",
        "watch": "1",
        "timeoutSeconds": "9",
    }


def test_connect__a_stream_of_something_else(session: ApiClient, answers: list[Answer]) -> None:
    answers.append(Answer(lines=(b"hello\n",)))
    with pytest.raises(Unreachable):
        list(session.stream("/x", {}, 9))


def test_connect__a_collection_without_a_selector_is_never_deleted(session: ApiClient) -> None:
    with pytest.raises(ValueError, match="selector"):
        session.delete_collection("/x", "")


def test_connect__a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no kubeconfig .*nothing"):
        connect(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "text", ["", "hello", "[", "apiVersion: v1\nkind: Config\n", "a: {b", "current-context: x"]
)
def test_connect__a_bad_kubeconfig_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UsageError, match="kubeconfig") as caught:
        connect(str(path))
    assert "\n" not in str(caught.value)


def test_connect__without_the_client_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(UsageError, match=r"kcover-ebpf\[kube\]"):
        connect()


def test_connect__an_unknown_context(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kubeconfig"):
        connect(kubeconfig(tmp_path, "http://127.0.0.1:1"), "elsewhere")


def test_connect__a_page_of_a_list_is_read_up_to_a_limit(
    session: ApiClient, answers: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant's objects must not cost the agent of every node its memory."""
    monkeypatch.setattr("kcover_ebpf.kube.client.MOST_PAGE_BYTES", 1000)
    large = {"items": ["x" * 2000]}
    answers += [Answer(body=large), Answer(body=large), Answer(body={"items": []})]
    with pytest.raises(TooLarge):
        session.list("/x", {"limit": "500"})
    assert session.list("/x") == large, "who asks for all gets all"
    assert session.list("/x", {"limit": "5"}) == {"items": []}


def test_connect__an_event_without_an_end_is_cut_off(
    session: ApiClient, answers: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcover_ebpf.kube.client.MOST_PAGE_BYTES", 1000)
    answers.append(Answer(lines=(b'{"type":"A"}\n', b"x" * 200_000)))
    with pytest.raises(Unreachable, match="an event of more than"):
        list(session.stream("/x", {}, 9))


def test_connect__no_thread_reads_a_certificate_that_another_has_not_written_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = base64.b64encode(b"of this test").decode()
    path = Path(kubeconfig(tmp_path, "https://127.0.0.1:1"))
    path.write_text(
        path.read_text().replace("server:", f"certificate-authority-data: {data}, server:")
    )
    is_open, over = threading.Event(), threading.Event()

    def slow(name: str, mode: str = "r") -> Any:
        if "w" in mode:
            is_open.set()
            over.wait()
        return open(name, mode)

    monkeypatch.setattr("kubernetes.config.kube_config.open", slow, raising=False)
    seen: list[str] = []

    def load() -> None:
        seen.append(Path(connect(str(path)).configuration().ssl_ca_cert).read_text())

    threads = [threading.Thread(target=load) for _ in range(2)]
    threads[0].start()
    assert is_open.wait(60)
    threads[1].start()
    threads[1].join(0.3)
    over.set()
    for thread in threads:
        thread.join()
    assert seen == ["of this test"] * 2


def test_stream__a_watch_that_is_silent_for_a_minute_and_a_half_is_given_up(
    session: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def send(*args: Any) -> Any:
        waits.append(args[-1])
        raise Unreachable("no")

    monkeypatch.setattr(session, "_send", send)
    with pytest.raises(Unreachable):
        list(session.stream("/x", {}, 290))
    assert waits == [90.0]


CONTEXTS = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://x"}}]
users: [{name: u, user: {token: t}}]
contexts:
  - {name: prod, context: {cluster: c, user: u, namespace: team}}
  - {name: bare, context: {cluster: c, user: u}}
"""


@pytest.mark.parametrize(
    ("current", "context", "expected"),
    [
        ("", "prod", "team"),
        ("", "bare", "default"),
        ("", None, "default"),
        ("current-context: prod", None, "team"),
        ("current-context: prod", "bare", "default"),
        ("current-context: gone", "prod", "team"),
    ],
)
def test_namespace_of__is_that_of_the_chosen_context_whatever_the_current_one_is(
    tmp_path: Path, current: str, context: str | None, expected: str
) -> None:
    path = tmp_path / "config"
    path.write_text(f"{CONTEXTS}{current}\n")
    assert namespace_of(str(path), context) == expected


def test_namespace_of__in_a_pod_it_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr("kcover_ebpf.kube.client.FOLDER", tmp_path)
    assert namespace_of() == "default"
    (tmp_path / "namespace").write_text("tools\n")
    assert namespace_of() == "tools"
