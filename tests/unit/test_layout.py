"""The maps of the source in README.md and CONTRIBUTING.md show every folder, in the order of the layers."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kcover_ebpf"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
LAYERS = [
    name.strip(" ()")
    for contract in CONTRACTS
    if contract["type"] == "layers"
    for layer in contract["layers"]
    for name in layer.split(":")
]
FOLDERS = sorted(each.parent for each in PACKAGE.rglob("__init__.py") if each.parent != PACKAGE)


def first_cells(page: str, heading: str) -> list[str]:
    """Everything in backquotes in the first column of the first table below a heading."""
    below = (ROOT / page).read_text().split(f"## {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table
    return [
        name
        for row in table[0].splitlines()
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]


def test_layout__in_the_readme_every_folder_of_the_package_is_on_the_map() -> None:
    shown = first_cells("README.md", "Layout")
    assert sorted(shown) == [str(folder.relative_to(ROOT)) for folder in FOLDERS]


def test_layout__in_the_readme_the_map_has_the_order_of_the_layers() -> None:
    shown = [name.removeprefix("kcover_ebpf/") for name in first_cells("README.md", "Layout")]
    assert [name for name in shown if "/" not in name] == [
        name for name in LAYERS if (PACKAGE / name).is_dir()
    ]


def test_layout__in_contributing_the_map_has_every_layer_in_its_order() -> None:
    assert first_cells("CONTRIBUTING.md", "The layers") == LAYERS


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_layout__every_path_in_backquotes_exists(page: str) -> None:
    named = re.findall(
        r"`((?:kcover_ebpf|tools|tests|docs|charts|bpf)/[\w./-]*)`", (ROOT / page).read_text()
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
