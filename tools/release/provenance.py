"""Where the files of a release come from: an in-toto statement with SLSA's provenance predicate.

Formats: https://in-toto.io/Statement/v1 and https://slsa.dev/spec/v1.0/provenance. What the statement claims is what
this program did: it names no builder service, so it is no more trustworthy than the signature over it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"


@dataclass(frozen=True)
class Source:
    """The source of a build: the `commit` of `repository`, with the commit's time `epoch_s` (seconds since 1970)."""

    repository: str
    commit: str
    epoch_s: int


def statement(
    files: Iterable[Path], image_digest: str, source: Source, inputs: Iterable[Path]
) -> str:
    """The statement about `files` and the image (sha256:...); `inputs`: files that pin the downloads."""
    subjects = [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in sorted(files)]
    subjects.append({"name": "image", "digest": {"sha256": image_digest.removeprefix("sha256:")}})
    origin = {
        "uri": f"git+{source.repository}",
        "digest": {"gitCommit": source.commit},
    }
    pins = [
        {"uri": f"file:{path.name}", "digest": {"sha256": _sha256(path)}} for path in sorted(inputs)
    ]
    predicate: Mapping[str, object] = {
        "buildDefinition": {
            "buildType": f"{source.repository}/blob/main/docs/releases.md",
            "externalParameters": {"command": "make release", "sourceDateEpoch": source.epoch_s},
            "resolvedDependencies": [origin, *pins],
        },
        "runDetails": {"builder": {"id": f"{source.repository}/blob/main/tools/release"}},
    }
    body = {"_type": STATEMENT, "subject": subjects, "predicateType": PREDICATE}
    return json.dumps(body | {"predicate": predicate}, indent=1) + "\n"


def _sha256(path: Path) -> str:
    with open(path, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
