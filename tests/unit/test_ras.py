"""NCCL RAS: both formats, the traps of the protocol, and who is named when."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.hardware.ras import RasError, laggard, parse
from kcover_ebpf.hardware.ras.client import DEFAULT_ADDRESS, Patience, address_of, ask
from tests.unit.ras_server import INCOMPLETE_TEXT, TEXT_REPORT, RasServer, json_report

QUICK = Patience(connect_s=0.3, collect_s=1.0, tries=3)


@pytest.fixture
def serve():
    servers = []

    def start(*reports, **options):
        servers.append(RasServer(list(reports), **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def behind(*texts: str) -> list[int] | None:
    found = laggard([parse(text) for text in texts])
    return None if found is None else [rank.rank for rank in found.behind]


def test_the_rank_that_never_joined_is_named():
    assert behind(json_report([7, 7, 6, 7]), json_report([7, 7, 6, 7])) == [2]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ([7, 7, 6, 7], [8, 8, 7, 8]),  # all go on: one is late as somebody always is
        ([7, 7, 6, 7], [7, 7, 7, 7]),
        ([7, 7, 7, 7], [7, 7, 7, 7]),  # all joined: nobody's fault by counts
    ],
)
def test_nobody_is_named(first, last):
    assert behind(json_report(first), json_report(last)) is None


def test_one_answer_is_not_enough():
    assert laggard([parse(json_report([7, 6]))]) is None


def test_another_kind_of_operation_shows_a_mismatch():
    """The totals are equal, the operations are not."""
    report = json_report([7, 7]).replace('"AllReduce": 7', '"AllGather": 7', 1)
    assert behind(report, report) is None  # each lacks what the other did: no one is behind alone


@pytest.mark.parametrize("drop_comma", [False, True])
def test_missing_ranks(drop_comma):
    report = parse(json_report([7, 7, 7, None], missing=(3,), drop_comma=drop_comma))
    found = laggard([report, report])
    assert found is not None
    assert [(rank.rank, rank.dead, rank.host) for rank in found.missing] == [(3, True, "10.0.0.2")]


def test_a_rank_that_was_missing_once_only():
    first = parse(json_report([7, 7, 7, 7]))
    last = parse(json_report([7, 7, 7, None], missing=(3,)))
    assert laggard([first, last]) is None


def test_one_number_before_2_26():
    old = '{"communicators": [{"hash": "a", "size": 2, "ranks": [' + ", ".join(
        f'{{"rank": {rank}, "host": "h", "pid": {rank}, "collective_counts": {count}}}'
        for rank, count in enumerate((9, 8))
    )
    old += "]}]}"
    assert behind(old, old) == [1]


def test_the_text_report():
    still = TEXT_REPORT.format(behind=6649)
    assert behind(still, still) == [3, 5]
    assert behind(TEXT_REPORT.format(behind=6648), still) is None
    report = parse(still)
    assert report.concerns({105})
    assert not report.whole


def test_the_text_report_of_a_missing_rank():
    report = parse(INCOMPLETE_TEXT)
    found = laggard([report, report])
    assert found is not None
    assert [(rank.rank, rank.pid) for rank in found.missing] == [(5, 105)]


@pytest.mark.parametrize(
    "text",
    ["", "   ", "{", "{}", "[]", '{"communicators": 3}', '{"communicators": [{}]}', "hello",
     '{"communicators": [{"hash": 1, "size": "x"}]}',
     '{"communicators": [{"hash": "a", "size": 1, "ranks": [{"rank": 0}]}]}'],
)  # fmt: skip
def test_wrong_answers_are_refused(text):
    with pytest.raises(RasError):
        parse(text)


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: raw.decode("latin-1")))
def test_no_answer_breaks_the_parser(text):
    for answer in (text, "{" + text, "Job summary\n" + text):
        with contextlib.suppress(RasError):
            parse(answer)


def test_conversation(serve):
    server = serve(json_report([7, 6]))
    report = ask(server.address, {100}, QUICK)
    assert [rank.total for rank in report.communicators[0].ranks] == [8, 7]
    assert server.asked == [
        "CLIENT PROTOCOL 2",
        "TIMEOUT 1",
        "SET FORMAT json",
        "VERBOSE STATUS",
    ]


def test_an_old_server_answers_in_text(serve):
    server = serve(TEXT_REPORT.format(behind=6649), json_known=False)
    assert not ask(server.address, {103}, QUICK).whole


def test_a_stopped_process_behind_the_shared_port_costs_one_try(serve):
    server = serve(json_report([7, 6]), silent_first=1)
    assert ask(server.address, {100}, QUICK).whole


def test_another_jobs_answer_is_not_believed(serve):
    foreign = json_report([7, 6], pid_of=lambda rank: 900 + rank)
    with pytest.raises(RasError, match="another job answered"):
        ask(serve(foreign).address, {100}, QUICK)
    server = serve(foreign, json_report([7, 6]))
    assert ask(server.address, {100}, QUICK).concerns({100})


@pytest.mark.parametrize(
    ("reports", "options"),
    [
        (["nonsense"], {}),
        ([""], {}),
        ([json_report([1])], {"greeting": "HTTP/1.1 400 Bad Request"}),
        ([json_report([1])], {"silent_first": 99}),
    ],
)
def test_wrong_servers(serve, reports, options):
    with pytest.raises(RasError):
        ask(serve(*reports, **options).address, {100}, QUICK)


def test_nobody_listens(serve):
    server = serve(json_report([1]))
    address = server.address
    server.close()
    with pytest.raises(RasError, match="refused"):
        ask(address, {100}, QUICK)
    serve(json_report([1]))


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (None, DEFAULT_ADDRESS),
        ("", DEFAULT_ADDRESS),
        ("10.0.0.1:999", ("10.0.0.1", 999)),
        ("[::1]:999", ("::1", 999)),
        ("nonsense", DEFAULT_ADDRESS),
        ("host:port", DEFAULT_ADDRESS),
    ],
)
def test_address(value, address):
    assert address_of(value) == address
