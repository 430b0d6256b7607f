"""Lines of real programs and what each is recognised as, from log_corpus*.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from kcover_ebpf.logs.lines import Source

FILES = [
    tomllib.loads((Path(__file__).parent / name).read_text())
    for name in (
        "log_corpus.toml",
        "log_corpus_makers.toml",
        "log_corpus_words.toml",
        "log_corpus_more.toml",
        "log_corpus_resembling.toml",
    )
]
CORPUS: dict[str, Any] = {
    **FILES[0],
    **{
        log: [row for file in FILES for row in file.get(log, ())]
        for log in ("kernel", "container", "near_misses")
    },
    "mild": FILES[2]["mild"],
    "quiet": FILES[3]["quiet"],
    "forms": FILES[3]["forms"],
}
ROWS = [
    (Source(log), row["text"], row["rule"])
    for log in ("kernel", "container")
    for row in CORPUS[log]
]
