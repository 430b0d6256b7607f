"""What a release consists of: notes, chart, checksums and their signature."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from kcover_ebpf import __version__
from tools.release import archive, chart, notes, oci, plugin, provenance, signing, userland

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/kcover-ebpf"
CHANGELOG = """# Changelog

Form of the file.

## [Unreleased]

- soon

## [1.2.0] - 2026-01-02

### Added

- `a`

## [1.10.0]

- old

[1.2.0]: https://example.org/1.2.0
"""


@pytest.mark.parametrize(
    ("version", "text", "is_final"),
    [
        ("1.2.0", "### Added\n\n- `a`", True),
        ("1.10.0", "- old", True),
        ("1.3.0", "- soon", False),
        ("1.2", "- soon", False),
    ],
)
def test_notes(version: str, text: str, is_final: bool) -> None:
    assert notes.notes(CHANGELOG, version) == (f"# kcover-ebpf {version}\n\n{text}\n", is_final)


@pytest.mark.parametrize("changelog", ["", "# Changelog\n\n## [Unreleased]\n\n## [1.0.0]\n\n- a\n"])
def test_notes__of_nothing_are_refused(changelog: str) -> None:
    with pytest.raises(ValueError, match=re.escape("no text below [2.0.0]")):
        notes.notes(changelog, "2.0.0")


def test_notes__of_this_version_exist() -> None:
    assert notes.notes((ROOT / "CHANGELOG.md").read_text(), __version__)[0]


def test_release__the_chart_has_the_version_of_the_package() -> None:
    text = (CHART / "Chart.yaml").read_text()
    versions = re.findall(r"^(?:appVersion|version): (.+)$", text, re.MULTILINE)
    assert versions == [__version__] * 2


def test_pack__all_files_of_the_chart_and_the_same_bytes_again(tmp_path: Path) -> None:
    one, two = tmp_path / "one.tgz", tmp_path / "two.tgz"
    chart.pack(CHART, one, 1_000_000_000)
    chart.pack(CHART, two, 1_000_000_000)
    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as archive:
        names = archive.getnames()
        assert {entry.mtime for entry in archive.getmembers()} == {1_000_000_000}
        packed = archive.extractfile("kcover-ebpf/values.yaml")
        assert packed is not None
        assert packed.read() == (CHART / "values.yaml").read_bytes()
    assert names[0] == "kcover-ebpf/Chart.yaml"
    files = {
        f"kcover-ebpf/{path.relative_to(CHART)}" for path in CHART.rglob("*") if path.is_file()
    }
    assert set(names) == files


def test_archive__holds_what_it_is_given_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    target = tmp_path / "bench.tar.gz"
    program = archive.Entry("run", b"#!/bin/sh\n", is_program=True)
    entries = [archive.entry("bench/a.jsonl", tmp_path / "a.jsonl"), program]
    archive.write(target, entries, 1_000_000_000)
    with tarfile.open(target) as packed:
        found = packed.getmembers()
        assert [(item.name, item.mtime, item.mode) for item in found] == [
            ("bench/a.jsonl", 1e9, 0o644),
            ("run", 1e9, 0o755),
        ]
        content = packed.extractfile(found[0])
        assert content is not None
        assert content.read() == b"{}\n"


def test_pack__leaves_out_what_helm_ignores(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    (folder / ".git").mkdir(parents=True)
    for name in ("Chart.yaml", "values.yaml", "values.yaml~", ".git/config"):
        (folder / name).write_text(name)
    (folder / ".helmignore").write_text("*~\n.git/\n")
    chart.pack(folder, tmp_path / "c.tgz", 0)
    with tarfile.open(tmp_path / "c.tgz") as archive:
        assert archive.getnames() == ["c/Chart.yaml", "c/.helmignore", "c/values.yaml"]


def test_pack__a_published_image_is_named_by_its_digest(tmp_path: Path) -> None:
    image = chart.Image("registry.example/kcover-ebpf", "sha256:" + "a" * 64)
    chart.pack(CHART, tmp_path / "c.tgz", 0, image)
    with tarfile.open(tmp_path / "c.tgz") as packed:
        content = packed.extractfile("kcover-ebpf/values.yaml")
        assert content is not None
        values = yaml.safe_load(content.read())
    assert values == yaml.safe_load((CHART / "values.yaml").read_text()) | {
        "image": {
            "repository": image.repository,
            "tag": "",
            "digest": image.digest,
            "pullPolicy": "IfNotPresent",
        }
    }


def test_pinned__values_without_an_image_are_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("0 lines with image.repository")):
        chart.pinned("agent: {}\n", chart.Image("a", "sha256:b"))


def oci_archive(folder: Path, digests: list[str], epoch_s: int = 0) -> Path:
    index = json.dumps({"manifests": [{"digest": digest} for digest in digests]}).encode()
    archive.write(folder / "image.tar", [archive.Entry("index.json", index)], epoch_s)
    return folder / "image.tar"


def test_digest_of__the_image_in_an_oci_archive(tmp_path: Path) -> None:
    assert oci.digest_of(oci_archive(tmp_path, ["sha256:a"])) == "sha256:a"


def test_pack__an_image_that_was_saved_later_is_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()
    one, two = (
        oci_archive(tmp_path, ["sha256:a"], 1),
        oci_archive(tmp_path / "later", ["sha256:a"], 2),
    )
    assert one.read_bytes() != two.read_bytes()
    oci.pack(one, tmp_path / "one.tar", 3)
    oci.pack(two, tmp_path / "two.tar", 3)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert oci.digest_of(tmp_path / "one.tar") == "sha256:a"


def test_digest_of__not_one_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 images, expected one"):
        oci.digest_of(oci_archive(tmp_path, ["sha256:a", "sha256:b"]))


def test_statement__names_each_file_the_image_and_the_commit(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("a")
    pin = tmp_path / "pins.txt"
    pin.write_text("b")
    source = provenance.Source("https://git.example/k", "c" * 40, 1_700_000_000)
    text = provenance.statement([tmp_path / "a.whl"], "sha256:d", source, [pin])
    found = json.loads(text)
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert found["subject"] == [
        {"name": "a.whl", "digest": {"sha256": hashlib.sha256(b"a").hexdigest()}},
        {"name": "image", "digest": {"sha256": "d"}},
    ]
    definition = found["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"] == [
        {"uri": "git+https://git.example/k", "digest": {"gitCommit": "c" * 40}},
        {"uri": "file:pins.txt", "digest": {"sha256": hashlib.sha256(b"b").hexdigest()}},
    ]
    assert text == provenance.statement([tmp_path / "a.whl"], "sha256:d", source, [pin])


def wheel_of(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return raw.getvalue()


def test_modules__only_what_the_plugin_imports() -> None:
    wheel = wheel_of(
        {
            "kubernetes/client/a.py": b"a",
            "kubernetes/aio/b.py": b"b",
            "kcover_ebpf/cli/kubectl.py": b"c",
            "kcover_ebpf/objects/x86_64/walk.bpf.o": b"d",
            "kcover_ebpf-0.1.0.data/data/share/man/man1/k.1": b"e",
        }
    )
    assert [(module.name, module.content) for module in plugin.modules(wheel)] == [
        ("lib/kubernetes/client/a.py", b"a"),
        ("lib/kcover_ebpf/cli/kubectl.py", b"c"),
    ]


def test_requirements__of_the_plugin_are_those_of_the_image() -> None:
    entries = plugin.requirements(plugin.REQUIREMENTS.read_text())
    assert plugin.COMPILED in entries
    assert not entries.keys() & plugin.LEFT_OUT
    assert all("--hash=sha256:" in entry for entry in entries.values())


def test_plugin__imports_nothing_that_is_left_out() -> None:
    """The modules that the archive does not have, under the names by which they are imported."""
    refused = ["re2", "pynvml", "prometheus_client", "py_spy"]
    script = f"import sys; sys.modules |= dict.fromkeys({refused})\n"
    script += (
        "from kcover_ebpf.cli.kubectl import main; from kcover_ebpf.kube import client, exec\n"
    )
    script += "sys.argv = ['kubectl-kcover', '--help']; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_manifest__krew_finds_the_archive(tmp_path: Path) -> None:
    file = tmp_path / "kubectl-kcover-1.2.3-linux.tar.gz"
    file.write_bytes(b"x")
    found = yaml.safe_load(plugin.manifest(file, "1.2.3", "https://git.example/k"))
    assert found["metadata"]["name"] == "kcover"
    assert found["spec"]["version"] == "v1.2.3"
    assert found["spec"]["platforms"] == [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": arch}},
            "uri": f"https://git.example/k/releases/download/v1.2.3/{file.name}",
            "sha256": hashlib.sha256(b"x").hexdigest(),
            "bin": "kubectl-kcover",
        }
        for arch in ("amd64", "arm64")
    ]


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    for name in ("b.whl", "a.tar"):
        (tmp_path / name).write_text(name)
    return signing.write_sums(tmp_path, list(tmp_path.iterdir()))


def check(sums: Path) -> int:
    command = ["sha256sum", "--check", "--quiet", sums.name]
    return subprocess.run(command, cwd=sums.parent, capture_output=True, check=False).returncode


def test_write_sums__sha256sum_reads_them(sums: Path) -> None:
    assert [line.split()[1] for line in sums.read_text().splitlines()] == ["a.tar", "b.whl"]
    assert check(sums) == 0
    (sums.parent / "b.whl").write_text("another")
    assert check(sums) != 0


@pytest.fixture
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


@pytest.mark.needs("ssh-keygen")
def test_sign__verifies_until_the_file_changes(sums: Path, key: Path) -> None:
    signature = signing.sign(sums, key)
    public = key.with_suffix(".pub").read_text()
    signers = key.with_name("allowed_signers")
    signers.write_text(f'release namespaces="{signing.NAMESPACE}" {public}')
    signing.verify(sums, signature, signers)
    sums.write_text(sums.read_text() + "\n")
    with pytest.raises(signing.SigningFailed, match="incorrect signature"):
        signing.verify(sums, signature, signers)


@pytest.mark.needs("minisign")
def test_sign_by_minisign__is_verified_and_the_same_again(
    sums: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("key")
    pair = ["-p", str(folder / "k.pub"), "-s", str(folder / "k")]
    subprocess.run(["minisign", "-G", "-W", *pair], capture_output=True, check=True)
    signature = signing.sign_by_minisign(sums, folder / "k", "kcover-ebpf-1.2.3")
    first = signature.read_bytes()
    assert b"trusted comment: kcover-ebpf-1.2.3" in first
    assert signing.sign_by_minisign(sums, folder / "k", "kcover-ebpf-1.2.3").read_bytes() == first
    with pytest.raises(signing.SigningFailed):
        signing.sign_by_minisign(sums, folder / "none", "kcover-ebpf-1.2.3")


@pytest.mark.needs("ssh-keygen")
def test_sign__without_a_key_says_why_in_one_line(sums: Path, tmp_path: Path) -> None:
    with pytest.raises(signing.SigningFailed, match="No such file") as caught:
        signing.sign(sums, tmp_path / "none")
    assert "\n" not in str(caught.value)


def test_userland__pip_settings_go_in_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    bundle = tmp_path / "ca.crt"
    bundle.write_text("a certificate")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "none"))
    monkeypatch.setenv("A_PASSWORD", "secret")
    inside = userland.settings()
    assert set(inside) == {"PATH", "HOME", "LANG", "PIP_CERT", "PIP_FIND_LINKS"}
    mounted = dict(userland.shown(inside))
    assert mounted[bundle] == bundle
    assert tmp_path / "none" not in mounted
    assert Path("/root") not in mounted


@pytest.mark.parametrize(
    ("given", "epoch"),
    [({}, "1700000000"), ({"SOURCE_DATE_EPOCH": "1600000000"}, "1600000000")],
    ids=["of the commit", "as it is set"],
)
def test_release__the_wheel_of_make_has_the_time_that_a_release_gives_it(
    given: dict[str, str], epoch: str, tmp_path: Path
) -> None:
    others = ("GIT_", "MAKE", "MFLAGS", "SOURCE_DATE_EPOCH")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    for name in ("AUTHOR", "COMMITTER"):
        environ |= {f"GIT_{name}_NAME": "a", f"GIT_{name}_EMAIL": "a@example.com"}
        environ[f"GIT_{name}_DATE"] = "1700000000 +0000"
    for git in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message=a"]):
        subprocess.run(["git", *git], cwd=tmp_path, env=environ, check=True)
    # hatchling's part is played by echo, and what the wheel is made of counts as made
    skipped, fake = ("--old-file=setup-test", "--old-file=build"), "PYTHON=echo $$SOURCE_DATE_EPOCH"
    made = subprocess.run(
        ["make", "--silent", f"--file={ROOT / 'Makefile'}", *skipped, fake, "wheel"],
        cwd=tmp_path,
        env=environ | given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == f"{epoch} -m hatchling build --target wheel\n"
