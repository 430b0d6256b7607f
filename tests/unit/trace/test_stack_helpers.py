"""What py-spy says becomes frames by thread; what it cannot see is said."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Helper
from kcover_ebpf.trace.native_frames import shown
from kcover_ebpf.trace.stack_helpers import Frames, Helpers, python_lines
from kcover_ebpf.watching import py_spy
from kcover_ebpf.watching.py_spy import is_python, parse

FRAME = {"name": "acquire", "short_filename": "train.py", "filename": "/x/train.py", "line": 8}


def said(**fields: object) -> bytes:
    thread = {"pid": 7, "os_thread_id": 7, "owns_gil": False, "frames": [FRAME]}
    return json.dumps([thread | fields]).encode()


def test_python_lines__frames_belong_to_the_thread_by_its_number_on_the_host() -> None:
    ((thread, found),) = parse(said(), 4711, {7: 4711}).items()
    assert (thread, python_lines(found)) == ((4711, 4711), ("acquire (train.py:8)",))
    assert list(parse(said(), 4711, {})) == [(4711, 7)]


@pytest.mark.parametrize(
    ("path", "is_library"),
    [
        ("/jobs/train.py", False),
        ("<string>", False),
        ("<stdin>", False),
        ("/home/me/site/train.py", False),
        ("/home/me/lib/python_jobs/train.py", False),
        ("/usr/lib/python3.11/threading.py", True),
        ("/usr/local/lib/python3.12/site-packages/torch/nn/modules/module.py", True),
        ("/usr/lib/python3/dist-packages/numpy/core.py", True),
        ("/opt/conda/lib/python3.10/socket.py", True),
        ("<frozen runpy>", True),
        ("/var/tmp/ray.zip/ray/worker.py", True),
    ],
)
def test_parse__frames_of_the_program_are_distinguished_from_those_of_libraries(
    path: str, is_library: bool
) -> None:
    frame = FRAME | {"filename": path, "short_filename": None}
    (found,) = parse(said(frames=[frame]), 7, {}).values()
    assert [(python_frame.file, python_frame.is_library) for python_frame in found.frames] == [
        (path, is_library)
    ]


def test_python_lines__the_holder_of_the_interpreter_lock_is_marked() -> None:
    (found,) = parse(said(owns_gil=True), 7, {}).values()
    assert python_lines(found) == ("holds the interpreter lock", "acquire (train.py:8)")


@pytest.mark.parametrize("out", [b"", b"{}", b"Error: no python", b"\xff"])
def test_parse__anything_else_is_an_error(out: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(out, 1, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["os_thread_id", "frames", "name", "owns_gil", "line"]), inner
        )
    ),
)


@given(st.lists(JSON))
@example([{"pid": 7, "os_thread_id": 7, "owns_gil": False, "frames": [FRAME]}])
def test_python_lines__any_list_is_read(value: list[object]) -> None:
    found = parse(json.dumps(value).encode(), 1, {})
    assert {pid for pid, _ in found} <= {1}
    assert all(
        isinstance(frame, str) for thread in found.values() for frame in python_lines(thread)
    )


def test_helpers__without_py_spy_the_missing_frames_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(py_spy, "program", lambda: None)

    def refused(*_: object, **__: object) -> Helper:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(helper, "start", refused)
    found = Helpers([(1, 1, "python3"), (1, 2, "python3")]).collect(1.0, {})
    assert found.blind[0] == "Python frames (py-spy is not installed)"
    assert found.blind[1] == "native frames of 2 threads (it did not start)"


def test_frames__a_thread_without_frames_has_an_empty_stack() -> None:
    stack = Frames(kernel={(1, 2): ("futex_wait",)}).stack(1, 2, 3)
    assert (stack.python, stack.native, stack.kernel, stack.rank) == ((), (), ("futex_wait",), 3)


@pytest.mark.parametrize(
    ("program", "python"), [("python3.11", True), ("pt_main_thread", True), ("mpirun", False)]
)
def test_is_python__python_programs_are_known_by_name(program: str, python: bool) -> None:
    assert is_python(program) is python


def test_shown__the_interpreters_own_frames_are_put_together() -> None:
    names = ["futex (libc.so.6)", "_PyEval_EvalFrameDefault (python3.11)", "python3.11+0x17"]
    assert shown([*names, "main (train)"]) == [
        "futex (libc.so.6)",
        "... the Python interpreter",
        "main (train)",
    ]


def test_helpers__few_run_at_once_and_all_in_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    spy = tmp_path / "py-spy"
    spy.write_text(
        f"#!/bin/sh\necho + >> {log}\n"
        # the first one waits for a second
        f"while [ $(grep -c + {log}) -lt 2 ]; do sleep 0.01; done\necho - >> {log}\n"
        "echo '[{\"os_thread_id\": '$5', \"frames\": []}]'\n"
    )
    spy.chmod(0o755)
    monkeypatch.setattr(py_spy, "program", lambda: str(spy))
    monkeypatch.setattr(helper, "_FILE_BYTES", 4096)
    pids = range(9_000_001, 9_000_008)
    found = Helpers([(pid, pid, "python3") for pid in pids]).collect(20.0, {})
    assert set(found.python) == {(pid, pid) for pid in pids}
    running = peak = 0
    for line in log.read_text().split():
        running += 1 if line == "+" else -1
        peak = max(peak, running)
    assert (running, peak) == (0, 2)


def test_helpers__one_that_does_not_answer_does_not_keep_the_others_from_being_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(
        "#!/bin/sh\n[ $5 = 9000001 ] && exec sleep 600\n"
        "echo '[{\"os_thread_id\": '$5', \"frames\": []}]'\n"
    )
    spy.chmod(0o755)
    monkeypatch.setattr(py_spy, "program", lambda: str(spy))
    pids = range(9_000_001, 9_000_006)
    spies = py_spy.Spies(pids)
    found = spies.collect(4.0, {})
    assert set(found.threads) == {(pid, pid) for pid in pids[1:]}
    assert found.blind == ["Python frames (pid 9000001: no time was left)"]
