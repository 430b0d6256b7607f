"""The wheel carries the BPF objects, current and reproducible, and installs without a compiler."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kcover_ebpf
from tools.docs import commands

ROOT = Path(__file__).resolve().parents[3]
ARCHITECTURES = ("x86_64", "arm64")
OBJECTS = sorted(
    f"kcover_ebpf/objects/{architecture}/{source.name.removesuffix('.c')}.o"
    for source in (ROOT / "bpf").glob("*.bpf.c")
    for architecture in ARCHITECTURES
)
ELF_MACHINE = slice(18, 20)
EM_BPF = (247).to_bytes(2, "little")  # include/uapi/linux/elf-em.h

PROBE = """
import importlib.metadata, importlib.resources, json
objects = importlib.resources.files("kcover_ebpf") / "objects"
print(json.dumps({
    "version": importlib.metadata.version("kcover-ebpf"),
    "objects": sorted(f"kcover_ebpf/objects/{arch.name}/{file.name}"
                      for arch in objects.iterdir() for file in arch.iterdir()),
}))
"""


def build(source: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target]
    subprocess.run([*command, "--directory", folder], cwd=source, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment, blind to this one and to the system's packages, with the wheel in it."""
    environment = tmp_path_factory.mktemp("clean") / "env"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = environment / "bin/pip"
    subprocess.run([pip, "install", "--quiet", wheel], check=True, cwd=environment)
    return environment


def run_installed(environment: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [environment / "bin" / command[0], *command[1:]],
        cwd=environment,
        env={"PATH": str(environment / "bin"), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )


def objects_in(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {n: archive.read(n) for n in archive.namelist() if n.endswith(".o")}


def test_packaging__the_wheel_has_each_object_for_each_architecture(wheel: Path) -> None:
    objects = objects_in(wheel)
    assert OBJECTS
    assert sorted(objects) == OBJECTS
    for name, content in objects.items():
        assert content[ELF_MACHINE] == EM_BPF, name
        assert b".BTF" in content, name
        assert b".debug_info" not in content, name
        assert os.fsencode(ROOT) not in content, name


def manuals_in(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        pages = [n for n in archive.namelist() if ".data/data/share/man/man1/" in n]
        return {Path(n).name: archive.read(n) for n in pages}


def test_manuals__the_wheel_has_a_manual_page_for_each_command(wheel: Path) -> None:
    pages = manuals_in(wheel)
    assert set(pages) == {manual.file for manual in commands.manuals()}
    assert {"kcover-ebpf-run.1", "kubectl-kcover-approve.1"} <= set(pages)
    assert b"\\-\\-max\\-restarts" in pages["kcover-ebpf-run.1"]


def test_packaging__the_wheel_is_pure_and_has_the_licence_texts(wheel: Path) -> None:
    assert wheel.name == f"kcover_ebpf-{kcover_ebpf.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(n).name for n in archive.namelist() if ".dist-info/licenses/" in n}
    texts = {text.name for text in (ROOT / "LICENSES").iterdir()}
    assert names == {"LICENSE", "NOTICE", *texts}


def test_packaging__the_wheel_has_each_plugin(wheel: Path) -> None:
    found = ROOT.glob("plugins/**/*.py")
    place = f"kcover_ebpf-{kcover_ebpf.__version__}.data/data/share/kcover-ebpf"
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith(f"{place}/")}
    assert shipped == {f"{place}/{path.relative_to(ROOT)}" for path in found}
    assert f"{place}/plugins/bandwidth/__main__.py" in shipped


@pytest.mark.long  # builds three archives; `make release` compares them as well
def test_packaging__a_wheel_built_from_the_source_archive_is_the_same(
    wheel: Path, tmp_path: Path
) -> None:
    archive = build(ROOT, "sdist", tmp_path / "sdist")
    subprocess.run(["tar", "--extract", "--file", archive, "-C", tmp_path], check=True)
    (source,) = tmp_path.glob("kcover_ebpf-*")
    again = build(source, "wheel", tmp_path / "wheel")
    assert objects_in(again) == objects_in(wheel)
    assert manuals_in(again) == manuals_in(wheel)


def test_packaging__the_installed_wheel_finds_its_objects(installed: Path) -> None:
    result = run_installed(installed, "python", "-c", PROBE)
    assert result.stderr == ""
    assert json.loads(result.stdout) == {"version": kcover_ebpf.__version__, "objects": OBJECTS}


def test_packaging__the_installed_command_runs_without_a_compiler(installed: Path) -> None:
    result = run_installed(installed, "kcover-ebpf", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage: kcover-ebpf" in result.stdout


@pytest.mark.needs("root", "bpf", "btf")
def test_packaging__the_installed_command_loads_its_objects_without_a_compiler(
    installed: Path,
) -> None:
    result = run_installed(installed, "kcover-ebpf", "doctor")
    assert (result.returncode, result.stderr) == (0, "")
    assert "attached" in result.stdout
