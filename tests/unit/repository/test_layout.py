"""The maps of the source in README.md and CONTRIBUTING.md show every folder, in the order of the layers."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "kcover_ebpf"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
LAYERS = [
    name.strip(" ()")
    for contract in CONTRACTS
    if contract.get("containers") == ["kcover_ebpf"]
    for layer in contract["layers"]
    for name in re.split("[:|]", layer)
]
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


def first_cells(page: str, heading: str, table: int = 0) -> list[str]:
    """Everything in backquotes in the first column of a table below a heading; 0: of the first table."""
    below = (ROOT / page).read_text().split(f"## {heading}\n", 1)[1]
    rows = re.findall(r"(?:^\|.*\n)+", below, re.MULTILINE)[table]
    return [
        name for row in rows.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]


def test_layout__in_the_readme_every_folder_of_the_package_is_on_the_map() -> None:
    shown = first_cells("README.md", "Layout")
    assert sorted(shown) == [str(folder.relative_to(ROOT)) for folder in FOLDERS]


def test_layout__in_the_readme_the_map_has_the_order_of_the_layers() -> None:
    shown = [name.removeprefix("kcover_ebpf/") for name in first_cells("README.md", "Layout")]
    assert [name for name in shown if "/" not in name] == [
        name for name in LAYERS if (PACKAGE / name).is_dir()
    ]


def test_layout__in_the_readme_every_folder_of_tests_and_tools_is_in_the_second_table() -> None:
    shown = first_cells("README.md", "Layout", 1)
    wanted = [
        str(folder.relative_to(ROOT))
        for tree in ("tests", "tools", "bench", "testbed")
        for folder in (ROOT / tree).iterdir()
        # of a folder that was removed, or of no commit, Python's byte code may be left
        if any(path.is_file() and "__pycache__" not in path.parts for path in folder.rglob("*"))
    ]
    folders = [
        name
        for name in shown
        if name.startswith(("tests/", "tools/", "bench/", "testbed/")) and (ROOT / name).is_dir()
    ]
    assert sorted(folders) == sorted(wanted)


def test_layout__in_contributing_the_map_has_every_layer_in_its_order() -> None:
    assert first_cells("CONTRIBUTING.md", "The layers") == LAYERS


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_layout__every_path_in_backquotes_exists(page: str) -> None:
    named = re.findall(
        r"`((?:kcover_ebpf|tools|tests|bench|testbed|docs|charts|bpf)/[\w./-]*)`",
        (ROOT / page).read_text(),
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
