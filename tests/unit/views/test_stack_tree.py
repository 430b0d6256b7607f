"""All stacks as one tree: which ranks are in a frame, and which are not."""

from __future__ import annotations

import json

from kcover_ebpf.model.traced import Stack
from kcover_ebpf.trace.render import stack_tree as traced
from kcover_ebpf.views.rank_numbers import in_and_out, ranks_text
from kcover_ebpf.views.stack_tree import (
    Layer,
    as_text,
    collapsed,
    frames_of,
    speedscope,
    tree_lines,
    tree_of,
)


def healthy(rank: int) -> Stack:
    return Stack(
        100 + rank,
        100 + rank,
        rank,
        python=("all_reduce (dist.py:20)", "step (train.py:44)", "main (train.py:80)"),
        native=(
            "__poll (libc.so.6)",
            "gloo::wait (libtorch.so)",
            "... the Python interpreter",
            "_start (python3)",
        ),
        kernel=("do_sys_poll",),
    )


CULPRIT = Stack(
    107,
    107,
    7,
    python=(
        "holds the interpreter lock",
        "save (ckpt;pt.py:3)",
        "step (train.py:44)",
        "main (train.py:80)",
    ),
)
STACKS = (*(healthy(rank) for rank in range(7)), CULPRIT, Stack(9, 9, 8))
TREE = tree_of(STACKS)


def test_frames_of__python_is_over_native_over_kernel_and_the_interpreter_is_left_out() -> None:
    assert [(frame.name, frame.layer) for frame in frames_of(healthy(0))] == [
        ("main (train.py:80)", Layer.PYTHON),
        ("step (train.py:44)", Layer.PYTHON),
        ("all_reduce (dist.py:20)", Layer.PYTHON),
        ("gloo::wait (libtorch.so)", Layer.NATIVE),
        ("__poll (libc.so.6)", Layer.NATIVE),
        ("do_sys_poll", Layer.KERNEL),
    ]


def test_frames_of__sampled_words_of_the_interpreter_are_left_out_too() -> None:
    words = ("libc.so.6+88360", "libtorch_cpu.so+44c2843", "python3.11+147b96", "python3.11+12b9e0")
    stack = Stack(1, 1, 0, ("step (train.py:44)",), words)
    assert [frame.name for frame in frames_of(stack)] == [
        "step (train.py:44)",
        "libtorch_cpu.so+44c2843",
        "libc.so.6+88360",
    ]
    assert len(frames_of(Stack(1, 1, 0, (), words))) == 4, (
        "without Python frames they are all there is"
    )


def test_as_text__where_the_ranks_part_the_odd_one_comes_first() -> None:
    shown = [line.split("  ") for line in as_text(TREE)]
    words = [(line[0] or line[1], line[-1]) for line in shown]
    assert words[0] == ("main (train.py:80)", "all 8")
    assert as_text(TREE)[2].startswith("  save (ckpt;pt.py:3)")
    assert as_text(TREE)[2].endswith("  7")
    assert as_text(TREE)[3].startswith("  all_reduce (dist.py:20)")
    assert as_text(TREE)[3].endswith("0-6 (not 7)")


def test_tree_of__every_rank_is_in_as_many_frames_as_its_stack_has() -> None:
    counts = dict.fromkeys(range(8), 0)
    nodes = list(TREE.roots)
    while nodes:
        node = nodes.pop()
        nodes += node.children
        assert all(child.members <= node.members for child in node.children)
        for rank in TREE.ranks(node.members):
            counts[rank] += 1
    assert counts == {**dict.fromkeys(range(7), 6), 7: 3}


def test_tree_of__a_program_may_be_thousands_of_calls_deep() -> None:
    """As one whose recursion does not end, at another depth in each rank."""
    calls = ("walk (tree.py:7)",) * 1200 + ("main (train.py:80)",)
    tree = tree_of(Stack(pid, pid, pid, calls[-10 * pid :]) for pid in range(1, 121))
    lines = list(tree_lines(tree))
    assert len(lines) == 1200
    parting = [tree.ranks(line.members) for line in lines if line.members is not None]
    assert parting == [tuple(range(pid, 121)) for pid in range(1, 121)]
    assert as_text(tree)[0].split() == ["main", "(train.py:80)", "python", "all", "120"]


def test_as_text__one_rank_alone_is_no_tree() -> None:
    assert as_text(tree_of([healthy(0)])) == []


def test_collapsed__a_line_for_each_stack_with_its_ranks_counted() -> None:
    assert collapsed(TREE).splitlines() == [
        "main (train.py:80);step (train.py:44);save (ckpt pt.py:3) 1",
        (
            "main (train.py:80);step (train.py:44);all_reduce (dist.py:20);"
            "gloo::wait (libtorch.so);__poll (libc.so.6);do_sys_poll_[k] 7"
        ),
    ]


def test_speedscope__samples_name_frames_and_weights_are_ranks() -> None:
    file = json.loads(json.dumps(speedscope(TREE, "j")))
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    everyone, odd, others = file["profiles"]
    assert (everyone["type"], everyone["endValue"], sum(everyone["weights"])) == ("sampled", 8, 8)
    frames = [frame["name"] for frame in file["shared"]["frames"]]
    assert [frames[place] for place in odd["samples"][0]][-1] == "save (ckpt;pt.py:3)"
    assert (odd["name"], others["name"], others["weights"]) == ("ranks 7", "ranks 0-6", [7])
    assert all(len(found["samples"]) == len(found["weights"]) for found in file["profiles"])


def test_trace__the_tree_is_shown_where_ranks_differ() -> None:
    lines = traced(STACKS)
    assert lines[0].startswith("the frames of 8 threads as one tree")
    assert any("0-6 (not 7)" in line for line in lines)
    assert traced([healthy(0), healthy(1), healthy(2)]) == []
    assert traced([healthy(0), CULPRIT]) == []


def test_ranks_text__runs_and_gaps() -> None:
    assert ranks_text([5, 0, 1, 2, None]) == "0-2,5"
    assert ranks_text([]) == "-"
    assert ranks_text(range(0, 20, 2), 3) == "0,2,4 and 7 more"
    assert ranks_text([3, -4711]) == "3,pid 4711"
    assert ranks_text([-1, -2, -3]) == "pid 1,pid 2,1 more"
    assert in_and_out([0, 1], [0, 1, 2]) == "0,1 (not 2)"
    assert in_and_out([2], [0, 1, 2]) == "2"
