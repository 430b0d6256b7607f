"""Everything that is fetched is pinned by a hash; the bill of materials is what is in the image."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
LISTS = sorted((ROOT / "tools").glob("*-requirements.txt"))
SBOM = ROOT / "tools/sbom.py"
PINNED = re.compile(r"[A-Za-z0-9_-]+==[0-9][\w.]*( ;.*?)? +--hash=sha256:[0-9a-f]{64}")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def entries(path: Path) -> list[str]:
    """The requirements of a file, each with its options on one line."""
    lines = re.sub(r"\\\n\s*", " ", path.read_text()).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def versions(path: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for entry in entries(path):
        name, _, rest = entry.partition("==")
        found.setdefault(name, set()).add(re.split(r"[ ;]", rest)[0])
    return found


def of(name: str) -> dict[str, set[str]]:
    return versions(ROOT / f"tools/{name}-requirements.txt")


def test_supply_chain__there_is_a_list_for_each_purpose() -> None:
    names = {path.name.removesuffix("-requirements.txt") for path in LISTS}
    assert names == {"build", "dev", "docs", "frameworks", "image", "jax", "nccl"}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_supply_chain__every_python_package_has_one_version_and_its_hashes(path: Path) -> None:
    assert entries(path)
    for entry in entries(path):
        assert PINNED.match(entry), entry[:80]


@pytest.mark.parametrize("name", ["image", "build"])
def test_supply_chain__what_is_shipped_is_what_is_tested(name: str) -> None:
    tested = of("dev")
    assert {key: tested.get(key) for key in of(name)} == of(name)


def test_supply_chain__every_tool_of_the_project_is_on_the_list() -> None:
    wanted = [*PROJECT["optional-dependencies"]["dev"], *PROJECT["dependencies"]]
    listed = of("dev")
    assert wanted
    for item in wanted:
        name, exact = re.match(r"([\w-]+)(?:==([\w.]+))?", item).groups()  # type: ignore[union-attr]
        assert name in listed, item
        assert exact is None or exact in listed[name], item


def test_supply_chain__the_image_installs_nothing_that_has_no_hash() -> None:
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    installs = re.findall(r"pip install [^&\n]*", text)
    assert len(installs) == 3
    assert all("--require-hashes" in install or "--no-index" in install for install in installs)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - stages
    assert bases == {"${BASE}", "scratch"}
    default = re.search(r"^ARG BASE(?:=(\S+))?$", text, re.MULTILINE)
    assert default
    assert default[1] is None or re.search(r"@sha256:[0-9a-f]{64}$", default[1])


def test_supply_chain__the_image_gets_every_file_that_it_copies() -> None:
    """.dockerignore leaves out all but what it lists."""
    listed = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(
        r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    files = [part for line in copied for part in line.split() if part != "."]
    assert files
    assert [file for file in files if f"!{file}" not in listed] == []


def test_supply_chain__the_image_gets_all_that_the_wheel_is_made_of() -> None:
    """Hatchling says nothing about shared files that are absent."""
    listed = (ROOT / ".dockerignore").read_text().splitlines()
    made_of = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = made_of["targets"]["wheel"]
    wanted = {*wheel["packages"], *wheel["shared-data"], wheel["hooks"]["custom"]["path"]}
    wanted |= {path.removeprefix("/") for path in made_of["targets"]["sdist"]["include"]}
    assert sorted(path for path in wanted if f"!{path}" not in listed) == []


def test_supply_chain__set_up_installs_nothing_that_has_no_hash() -> None:
    text = (ROOT / "tools/setup").read_text()
    called = [line.strip() for line in text.splitlines() if line.strip().startswith("pip_install ")]
    assert len(called) == 2
    ours = "--no-deps --no-build-isolation --editable ."
    assert all("--require-hashes" in other_text or ours in other_text for other_text in called)
    assert len(re.findall(r"-m pip\b", text)) == 1


def test_supply_chain__hooks_fetch_nothing() -> None:
    table = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in table["repos"]} == {"local"}
    assert {hook["language"] for repo in table["repos"] for hook in repo["hooks"]} == {"system"}


def test_supply_chain__every_go_module_of_the_test_bed_has_its_hash() -> None:
    table = tomllib.loads((ROOT / "testbed/cluster/versions.toml").read_text())
    modules = [*table["program"].values(), *table["kubernetes"].values()]
    assert modules
    assert [
        module for module in modules if not re.fullmatch(r"h1:[\w+/]{43}=", module["sum"])
    ] == []


def image(folder: Path) -> Path:
    """The part of an unpacked image that the check reads: one package of Debian, one of Python."""
    status = (
        "Package: python3\nStatus: install ok installed\nVersion: 3.11\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    (folder / "var/lib/dpkg").mkdir(parents=True)
    (folder / "var/lib/dpkg/status").write_text(status)
    packages = folder / "usr/local/lib/python3.11/dist-packages"
    made = packages / "click-8.5.1.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: click\nVersion: 8.5.1\n")
    files = ("click/core.py", f"{made.name}/METADATA", f"{made.name}/RECORD")
    (made / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    (packages / "click").mkdir()
    (packages / "click/core.py").touch()
    listed = [("python3", "3.11"), ("click", "8.5.1")]
    (folder / "usr/share/sbom").mkdir(parents=True)
    (folder / "usr/share/sbom/kcover-ebpf.spdx.json").write_text(
        json.dumps({"packages": [{"name": n, "versionInfo": v} for n, v in listed]})
    )
    return folder


def checked(root: Path) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, SBOM, "--check", root], capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stderr


def test_sbom__an_image_that_is_its_bill_passes(tmp_path: Path) -> None:
    assert checked(image(tmp_path)) == (0, "")


def test_sbom__what_is_not_on_the_bill_is_named(tmp_path: Path) -> None:
    root = image(tmp_path)
    (root / "usr/local/lib/python3.11/dist-packages/extra.py").touch()
    status = root / "var/lib/dpkg/status"
    status.write_text(status.read_text().replace("Version: 3.11", "Version: 3.12"))
    code, said = checked(root)
    assert code == 1
    assert said.splitlines() == [
        "python3 3.12 is in the image, and not in the bill of materials",
        "python3 3.11 is in the bill of materials, and not in the image",
        "extra.py belongs to no package",
    ]
