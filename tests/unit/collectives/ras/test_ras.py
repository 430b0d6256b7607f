"""NCCL RAS: both formats, the traps of the protocol, and who is named when."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.collectives.ras import RasError, read
from kcover_ebpf.collectives.ras.answer import parse
from kcover_ebpf.collectives.ras.client import (
    DEFAULT_PORT,
    RasPatience,
    RasPlace,
    ask,
    dead_peers,
    listen,
    port_of,
)
from kcover_ebpf.collectives.ras.netns import holder_inode
from kcover_ebpf.ids import Pid
from testbed.driver.fake_ras_server import (
    INCOMPLETE_TEXT,
    TEXT_REPORT,
    FakeRasServer,
    joined,
    json_report,
)

QUICK = RasPatience(connect_s=1.0, collect_s=1.0, tries=3)
PATIENT = RasPatience(connect_s=20.0, collect_s=20.0, tries=1)


@pytest.fixture
def serve():
    servers = []

    def start(*reports, **options):
        servers.append(FakeRasServer(list(reports), **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def behind(*texts: str) -> list[int] | None:
    """Ranks that hold up the others; None when the job continues."""
    found = read([parse(text) for text in texts])
    assert found is not None
    return None if found.moving else [rank.rank for rank, _ in found.behind]


def place(server: FakeRasServer, pids: set[int]) -> RasPlace:
    """The server's, whose processes `pids` are all this one."""
    me = Pid(os.getpid())
    return RasPlace(server.address, me, dict.fromkeys(pids, me))


def test_read__the_rank_that_never_joined_is_named():
    assert behind(json_report([7, 7, 6, 7]), json_report([7, 7, 6, 7])) == [2]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ([7, 7, 6, 7], [8, 8, 7, 8]),  # one is late as one always is
        ([7, 7, 6, 7], [7, 7, 7, 7]),
    ],
)
def test_read__a_job_that_continues(first, last):
    assert behind(json_report(first), json_report(last)) is None


def test_read__all_joined_is_no_fault_by_counts():
    assert behind(json_report([7, 7, 7, 7]), json_report([7, 7, 7, 7])) == []


def test_read__one_answer_is_not_enough():
    assert read([parse(json_report([7, 6]))]) is None


def test_read__another_kind_of_operation_shows_a_mismatch():
    """The totals are equal, the operations are not: each lacks what the other did."""
    report = json_report([7, 7]).replace('"AllReduce": 7', '"AllGather": 7', 1)
    assert behind(report, report) == []


def test_read__who_is_behind_because_it_waits_in_another_communicator_is_no_culprit():
    """Rank 1 is late in "dp" because it waits in "tp" for rank 2, which waits nowhere."""
    report = joined(
        json_report([7, 6], comm="dp"),
        json_report([4, 3], comm="tp", pid_of=lambda rank: 101 + rank),
    )
    found = read([parse(report), parse(report)])
    assert found is not None
    assert [(rank.pid, comm.name) for rank, comm in found.behind] == [(102, "tp")]


def test_read__ranks_that_wait_for_each_other_are_not_named():
    report = joined(json_report([7, 6], comm="a"), json_report([3, 4], comm="b"))
    assert behind(report, report) == []


def test_read__a_communicator_that_is_taken_apart_reports_nothing():
    report = (
        json_report([7, 6])
        .replace('"SUCCESS"}', '"SUCCESS", "destroy_flag": true}')
        .replace('"async_error": "SUCCESS"', '"async_error": "SUCCESS", "finalize_called": true')
    )
    assert behind(report, report) == []


@pytest.mark.parametrize("drop_comma", [False, True])
def test_read__missing_ranks(drop_comma):
    report = parse(json_report([7, 7, 7, None], missing=(3,), drop_comma=drop_comma))
    found = read([report, report])
    assert found is not None
    assert [(r.rank, r.host) for r, _ in found.missing] == [(3, "10.0.0.2")]


def test_read__a_rank_that_was_missing_once_only():
    first = parse(json_report([7, 7, 7, 7]))
    last = parse(json_report([7, 7, 7, None], missing=(3,)))
    found = read([first, last])
    assert found is not None
    assert found.missing == ()


def test_read__one_number_before_2_26():
    old = '{"communicators": [{"hash": "a", "size": 2, "ranks": [' + ", ".join(
        f'{{"rank": {rank}, "host": "h", "pid": {rank}, "collective_counts": {count}}}'
        for rank, count in enumerate((9, 8))
    )
    old += "]}]}"
    assert behind(old, old) == [1]


def test_read__the_text_report():
    still = TEXT_REPORT.format(behind=6649)
    assert behind(still, still) == [3, 5]
    assert behind(TEXT_REPORT.format(behind=6648), still) is None
    report = parse(still)
    assert report.concerns({105})
    assert not report.whole


def test_read__the_text_report_of_a_missing_rank():
    report = parse(INCOMPLETE_TEXT)
    found = read([report, report])
    assert found is not None
    assert [(rank.rank, rank.pid) for rank, _ in found.missing] == [(5, 105)]
    assert not found.complete


@pytest.mark.parametrize(
    "text",
    ["", "   ", "{", "{}", "[]", '{"communicators": 3}', '{"communicators": [{}]}', "hello",
     '{"communicators": [{"hash": 1, "size": "x"}]}',
     '{"communicators": [{"hash": "a", "size": 1, "ranks": [{"rank": 0}]}]}'],
)  # fmt: skip
def test_parse__wrong_answers_are_refused(text):
    with pytest.raises(RasError):
        parse(text)


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda raw: raw.decode("latin-1")))
@example(json_report([7, 6]))
def test_parse__no_answer_breaks_the_parser(text):
    for answer in (text, "{" + text, "Job summary\n" + text):
        try:
            report = parse(answer)
        except RasError:
            continue
        assert report.communicators or not report.whole


def test_ask__conversation(serve):
    server = serve(json_report([7, 6]))
    report = ask(place(server, {100}), QUICK)
    assert [rank.total for rank in report.communicators[0].ranks] == [8, 7]
    assert server.asked == [
        "CLIENT PROTOCOL 2",
        "TIMEOUT 1",
        "SET FORMAT json",
        "VERBOSE STATUS",
    ]


def test_ask__an_old_server_answers_in_text(serve):
    server = serve(TEXT_REPORT.format(behind=6649), json_known=False)
    assert not ask(place(server, {103}), QUICK).whole


def test_ask__a_stopped_process_behind_the_shared_port_costs_one_try(serve):
    server = serve(json_report([7, 6]), silent_first=1)
    assert ask(place(server, {100}), QUICK).whole


def test_ask__another_jobs_answer_is_not_believed(serve):
    foreign = json_report([7, 6], pid_of=lambda rank: 900 + rank)
    with pytest.raises(RasError, match="another job answered"):
        ask(place(serve(foreign), {100}), QUICK)
    server = serve(foreign, json_report([7, 6]))
    assert ask(place(server, {100}), QUICK).concerns({100})


@pytest.mark.parametrize(
    ("reports", "options"),
    [
        (["nonsense"], {}),
        ([""], {}),
        ([json_report([1])], {"greeting": "HTTP/1.1 400 Bad Request"}),
        ([json_report([1])], {"silent_first": 99}),
    ],
)
def test_ask__wrong_servers(serve, reports, options):
    with pytest.raises(RasError):
        ask(place(serve(*reports, **options), {100}), QUICK)


def test_ask__without_a_listener(serve):
    server = serve(json_report([1]))
    where = place(server, {100})
    server.close()
    with pytest.raises(RasError, match="refused"):
        ask(where, QUICK)


def test_ask__a_server_that_is_no_process_of_the_job(serve):
    """The report speaks of our numbers: in a shared namespace another pod's may be the same."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        where = RasPlace(
            serve(json_report([7, 6])).address, Pid(os.getpid()), {100: Pid(other.pid)}
        )
        with pytest.raises(RasError, match="another job"):
            ask(where, QUICK)
        other.kill()


def test_listen__events(serve):
    event = '{"timestamp": "x", "group": "LIFECYCLE", "event": "PEER_DEAD", '
    event += '"peer": {"host": "10.0.0.2", "pid": 103, "cuda_devs": "0"}, "details": ""}'
    server = serve(json_report([1]), events=[event])
    reported = listen(place(server, {100}), PATIENT, 20.0)
    assert dead_peers(reported) == [("10.0.0.2", 103)]
    assert "MONITOR lifecycle" in server.asked


def test_listen__a_server_without_events(serve):
    assert listen(place(serve(json_report([1])), {100}), PATIENT, 20.0) == []


@given(st.lists(st.text(max_size=80), max_size=4))
def test_dead_peers__no_event_breaks_the_reader(lines):
    assert dead_peers([*lines, '{"event": "PEER_DEAD", "peer": 3}']) == []


@pytest.mark.parametrize(
    ("value", "port"),
    [
        (None, DEFAULT_PORT),
        ("", DEFAULT_PORT),
        ("10.0.0.1:999", 999),
        ("[::1]:999", 999),
        ("nonsense", DEFAULT_PORT),
        ("host:port", DEFAULT_PORT),
        ("host:99999", DEFAULT_PORT),
        ("host:0", DEFAULT_PORT),
        ("host:²", DEFAULT_PORT),
    ],
)
def test_port_of__port(value, port):
    assert port_of(value) == port


def test_holder_inode__ipv6_listeners_are_found_too():
    """The other end is looked up in the kernel's table of the address family."""
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as listener,
        socket.create_connection(listener.getsockname()[:2]) as near,
        listener.accept()[0] as far,
    ):
        assert holder_inode(near, Pid(os.getpid())) == os.fstat(far.fileno()).st_ino


def crossed(*vectors: dict[str, int], comm: str = "abc", **status: object) -> str:
    """A report of one communicator; one vector of counts for each rank."""
    table = json.loads(json_report([0] * len(vectors), comm=comm))
    for rank, counts in zip(table["communicators"][0]["ranks"], vectors, strict=True):
        rank["collective_counts"] = counts
        rank["status"].update(status)
    return json.dumps(table)


REDUCED = {"AllReduce": 101, "AllGather": 50}
GATHERED = {"AllReduce": 100, "AllGather": 51}
BEFORE = {"AllReduce": 100, "AllGather": 50}


@pytest.mark.parametrize(
    ("vectors", "odd", "late", "sides"),
    [
        ([REDUCED] * 7 + [GATHERED], [7], [], [7, 1]),
        ([REDUCED] * 2 + [GATHERED] * 2, [], [], [2, 2]),
        ([REDUCED] * 2 + [GATHERED], [2], [], [2, 1]),
        ([REDUCED] * 3 + [GATHERED, BEFORE], [3], [4], [3, 1]),
        ([REDUCED] * 3 + [BEFORE], [], [3], []),
        ([REDUCED, GATHERED], [], [], [1, 1]),
    ],
)
def test_read__counts_by_kind_distinguish_a_mismatch_from_a_rank_that_did_not_join(
    vectors, odd, late, sides
):
    report = parse(crossed(*vectors))
    found = read([report, report])
    assert found is not None
    assert [rank.rank for rank, _ in found.odd] == odd
    assert [rank.rank for rank, _ in found.behind] == late
    assert [len(side) for side in found.sides] == sides
    assert not found.equal


def test_read__counts_of_a_thousand_sorts_name_no_rank_and_are_not_equal():
    report = parse(
        crossed(*({"AllReduce": number, "AllGather": 5000 - number} for number in range(1000)))
    )
    found = read([report, report])
    assert found is not None
    assert (found.behind, found.odd, found.sides, found.equal) == ((), (), (), False)


def test_read__ranks_that_wait_for_each_other_are_not_equal():
    report = parse(joined(json_report([7, 6], comm="a"), json_report([3, 4], comm="b")))
    found = read([report, report])
    assert found is not None
    assert (found.behind, found.equal) == ((), False)


OWN, REMOTE, CONTINUES, GAVE_UP = 2, 6, 7, {"abort_flag": True}


@pytest.mark.parametrize(
    ("states", "counts", "failed"),
    [
        ((0, OWN, 0, 0), (7, 7, 7, 7), [1]),
        ((0, OWN, REMOTE, REMOTE), (7, 7, 7, 7), [1]),
        ((0, "ncclSystemError", "SUCCESS", 0), (7, 7, 7, 7), [1]),
        ((0, OWN, 0, 0), (7, 7, 6, 7), [1]),
        ((0, REMOTE, REMOTE, 0), (7, 7, 7, 7), [1, 2]),
        ((0, CONTINUES, 0, 0), (7, 7, 7, 7), []),
        ((0, GAVE_UP, 0, 0), (7, 7, 7, 7), [1]),
        ((0, GAVE_UP, 0, 0), (7, 7, 6, 7), []),
    ],
)
def test_read__where_a_communicator_failed(states, counts, failed):
    """NCCL numbers its results: 2 is the system's, 6 that of a peer, 7 none at all."""
    table = json.loads(json_report(counts))
    for rank, state in zip(table["communicators"][0]["ranks"], states, strict=True):
        rank["status"].update(state if isinstance(state, dict) else {"async_error": state})
    report = parse(json.dumps(table))
    found = read([report, report])
    assert found is not None
    assert [rank.rank for rank, _ in found.failed] == failed


def test_read__a_rank_that_answers_but_left_the_communicator_is_not_missing():
    text = json_report([7, 7, 7, None], missing=(3,))
    text = re.sub(r'"unresponsive": true,\s*"considered_dead": true', '"unresponsive": false', text)
    report = parse(text)
    found = read([report, report])
    assert found is not None
    assert found.missing == ()
    assert report.communicators[0].ending
