"""Writes the SPDX 2.3 bill of materials of the system it runs in: Debian's packages and Python's.

Runs inside the image that is being built, with the standard library alone. The same packages give
the same bytes: the time is SOURCE_DATE_EPOCH, the name of the document is a hash of its contents.

With `--check ROOT` it compares the document of an image that was unpacked at ROOT with what is in it, and exits with 1
where they differ: a package that is not in the document, one that is not in the image, a Python file of no package.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

NAME = "kcover-ebpf"
DOCUMENT = Path("usr/share/sbom/kcover-ebpf.spdx.json")
FOLDER = Path("usr/local/lib/python3.11/dist-packages")
"""Relative to the root of an image."""
FORMAT = "${Package}\t${Version}\t${Architecture}\t${source:Package}\t${Maintainer}\n"
Package = dict[str, object]


def spdx_id(kind: str, name: str) -> str:
    """An identifier of SPDX: letters, digits, dots and hyphens."""
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def entry(kind: str, name: str, version: str, purl: str, licence: str | None) -> Package:
    """One package.

    `licence` None: its metadata contain none. A Debian package's licence is in /usr/share/doc/NAME/copyright.
    """
    return {
        "SPDXID": spdx_id(kind, name),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence or "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl,
            }
        ],
    }


def debian_packages(listing: str) -> Iterator[Package]:
    """The packages in the output of dpkg-query with FORMAT."""
    for line in listing.splitlines():
        name, version, architecture, source, maintainer = line.split("\t")
        purl = f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}?arch={architecture}"
        package = entry("deb", name, version, purl, None)
        package["supplier"] = f"Organization: {maintainer}"
        package["sourceInfo"] = f"built from the Debian source package {source}"
        yield package


def python_packages(folder: Path) -> Iterator[Package]:
    """The distributions installed in `folder`."""
    for found in metadata.distributions(path=[str(folder)]):
        name = found.metadata["Name"]
        expression = next(iter(found.metadata.get_all("License-Expression") or ()), None)
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{found.version}"
        yield entry("pypi", name, found.version, purl, expression)


def document(packages: list[Package], epoch_s: int) -> dict[str, object]:
    """The document with the time `epoch_s` (seconds since 1970)."""
    packages = sorted(packages, key=lambda package: str(package["SPDXID"]))
    digest = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
    described = [{"relationshipType": "DESCRIBES", "relatedSpdxElement": package["SPDXID"]}
                 for package in packages]  # fmt: skip
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": NAME,
        "documentNamespace": f"https://kcover.io/spdx/{NAME}-{digest}",
        "creationInfo": {
            "created": datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: {NAME}-tools-sbom"],
        },
        "packages": packages,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", **entry} for entry in described],
    }


def listing() -> str:
    """Installed packages by dpkg, and packages in /tmp from which files were taken."""
    commands = [["dpkg-query", "--show"]]
    commands += [["dpkg-deb", "--show", str(path)] for path in sorted(Path("/tmp").glob("*.deb"))]
    shown = [
        subprocess.run(
            [*words[:2], f"--showformat={FORMAT}", *words[2:]],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for words in commands
    ]
    return "".join(shown)


def differences(root: Path) -> Iterator[str]:
    """A line for each difference between an unpacked image and its document, in either direction."""
    table = json.loads((root / DOCUMENT).read_text())
    listed = {(package["name"], package["versionInfo"]) for package in table["packages"]}
    present = installed(root)
    for name, version in sorted(present - listed):
        yield f"{name} {version} is in the image, and not in the bill of materials"
    for name, version in sorted(listed - present):
        yield f"{name} {version} is in the bill of materials, and not in the image"
    for path in sorted(unowned(root / FOLDER)):
        yield f"{path} belongs to no package"


def installed(root: Path) -> set[tuple[str, str]]:
    """(name, version) of each package by dpkg's and Python's own lists."""
    status = (root / "var/lib/dpkg/status").read_text().split("\n\n")
    fields = [dict(re.findall(r"^([A-Z][\w-]*): (.*)$", text, re.MULTILINE)) for text in status]
    found = {
        (field["Package"], field["Version"])
        for field in fields
        if field.get("Status", "").endswith(" installed")
    }
    python = metadata.distributions(path=[str(root / FOLDER)])
    found |= {(item.metadata["Name"], item.version) for item in python}
    # bcc's symbolizer is extracted from its package, whose version appears nowhere else in the
    # image
    partial = {"libbpfcc"} if any(root.glob("usr/lib/*/libbcc_bpf.so.*")) else set()
    table = json.loads((root / DOCUMENT).read_text())
    return found | {
        (package["name"], package["versionInfo"])
        for package in table["packages"]
        if package["name"] in partial
    }


def unowned(folder: Path) -> set[str]:
    """Python files that belong to no distribution, without compiled ones."""
    owned = {
        str(file)
        for distribution in metadata.distributions(path=[str(folder)])
        for file in distribution.files or ()
    }
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {text for text in present - owned if not text.endswith(".pyc")}


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--check"]:
        found = list(differences(Path(arguments[1])))
        print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
        return int(bool(found))
    packages = [*debian_packages(listing()), *python_packages(Path("/") / FOLDER)]
    json.dump(
        document(packages, int(os.environ.get("SOURCE_DATE_EPOCH", "0"))), sys.stdout, indent=1
    )
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
