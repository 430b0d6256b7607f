"""Writes what tests/vm showed into docs: docs/bench/hardware.json and .md, and the matrix of docs/hardware.md.

python tools/hardware_doc.py --take    takes over what ran here since (.vm/results.json), then writes
python tools/hardware_doc.py           writes the pages from docs/bench/hardware.json
python tools/hardware_doc.py --check   says whether they are up to date, and exits 1 if not
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.pages import ROOT, keep

TAKEN = ROOT / ".vm/results.json"
DATA = ROOT / "docs/bench/hardware.json"
REPORT = ROOT / "docs/bench/hardware.md"
PAGE = ROOT / "docs/hardware.md"
BEGIN = "<!-- Written by tools/hardware_doc.py: change tests/vm. -->\n"
END = "<!-- Until here. -->\n"

Test = Mapping[str, Any]
Results = dict[str, dict[str, Test]]
"""Kernel (or "drivers") -> test -> its result, as tests/vm/record.py writes it."""

KERNELS = ("5.10", "6.1", "6.12", "newest")
FAMILIES = {
    "probes": "every probe attached",
    "xid": "Xid by kprobe: 23 of 23, device and process; each a fault of the holder as the catalogue says",
    "silent": "an Xid that the driver does not print",
    "log": "lines of the log; forged ones refused; MIG instance",
    "tracepoint": "the driver's tracepoint (`--pin-driver`)",
    "holders": "who holds the GPU: open, compute context, MIG instance, renamed function",
    "lost": "GPU lost without an Xid",
    "switch": "NVSwitch errors",
    "aer": "PCIe errors: 23 of 23 corrected, non-fatal, fatal, and those of the port above",
    "storm": "10,000 corrected errors, none lost",
    "memory": "bad page, machine check, memory controller",
    "nic": "RDMA port, link, devlink health",
    "disk": "failed request of a disk",
    "health": "inspection and log rules: RDMA port, devlink health, soft lockup, hung task, NVMe time-out",
    "nfs": "an NFS server that stops answering, and answers again: inspection, log rules, a job that writes there",
    "npd": "node-problem-detector next to us: both recognise the same line, each its own",
    "reload": "driver unloaded and loaded again",
    "sensor": "whole sensor: fatal Xid or PCIe error, RDMA port down, operator's word -> shutdown; harmless Xids: none",
    "stuck": "whole sensor: a driver call that hangs",
    "wire": "whole sensor: two machines, a silent wire, a pulled plug",
    "latency": "time and cost, guest time",
    "targets": "",
}
"""Values of a test's mark `family`: the rows of the matrix. An empty text: not related to a kernel."""

HEAD = """# Devices: what ran in a guest

<!-- Written by tools/hardware_doc.py from hardware.json: run `make test-vm`, then it with --take. -->

Emulated machines (QEMU without KVM), real kernels of Debian, a stub driver with the real one's function names,
arguments and tracepoint, real PCIe errors through `aer_inject`. *Guest time*: one instruction is a nanosecond, so that
the load of the host does not matter. What it means for the sensor: [docs/hardware.md](../hardware.md).

"""


def take(results: Results, ran: Results) -> Results:
    """`results` updated with the latest runs; tests that no longer exist are dropped."""
    names = sorted({*results, *ran})
    merged = {name: {**results.get(name, {}), **ran.get(name, {})} for name in names}
    there = {
        name: {test: merged[name][test] for test in sorted(merged[name]) if _exists(test)}
        for name in names
    }
    return {name: tests for name, tests in there.items() if tests}


def _exists(test: str) -> bool:
    module, _, name = test.partition("::")
    source = ROOT / "tests/vm" / f"{module}.py"
    return source.exists() and f"def {name.partition('[')[0]}(" in source.read_text()


class Notes:
    """Footnotes of a table, each written once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        """Number of a footnote, for a cell."""
        if text not in self._texts:
            self._texts.append(text)
        return f" ({self._texts.index(text) + 1})"

    def lines(self) -> str:
        """All footnotes as text."""
        return "".join(f"{i}. {text}\n" for i, text in enumerate(self._texts, start=1))


def cell(tests: Mapping[str, Test], notes: Notes, wanted: Iterable[str] = ()) -> str:
    """Whether a family works: the outcomes of its tests in one word, with reasons for failures and skips.

    `wanted`: names of all tests of the family.
    """
    if not tests:
        return "not run"
    failed = {name: test for name, test in tests.items() if test["outcome"] == "failed"}
    skipped = {name: test for name, test in tests.items() if test["outcome"] == "skipped"}
    remarks = "".join(notes.mark(f"{_said(name)}: {t['reason']}") for name, t in failed.items())
    if failed:
        return f"**no**{remarks}"
    if len(skipped) == len(tests):
        return "-" + "".join(sorted({notes.mark(t["reason"]) for t in skipped.values()}))
    left_out = {_said(name): t["reason"] for name, t in skipped.items()}
    ran = {name.partition("::")[2].partition("[")[0] for name in tests}
    left_out |= {f"`{name}`": "not run" for name in wanted if name not in ran}
    return "yes" + "".join(notes.mark(f"without {name}: {why}") for name, why in left_out.items())


def members_of(family: str) -> list[str]:
    """Names of the tests marked with a family, from the sources."""
    names: list[str] = []
    for file in sorted((ROOT / "tests/vm").glob("test_*.py")):
        source = file.read_text()
        if f'pytestmark = pytest.mark.family("{family}")' in source:
            names += re.findall(r"^def (test_\w+)", source, re.MULTILINE)
        marked = rf'^@pytest\.mark\.family\("{family}"\)\n(?:@.*\n)*def (test_\w+)'
        names += re.findall(marked, source, re.MULTILINE)
    return names


def _said(test: str) -> str:
    return f"`{test.partition('::')[2]}`"


def matrix(results: Results) -> str:
    """One row per family, one column per kernel."""
    kernels = [name for name in KERNELS if name in results]
    notes = Notes()
    versions = (_version(results[name]) for name in kernels)
    text = f"| family | {' | '.join(map(_column, kernels, versions))} |\n|---|{'---|' * len(kernels)}\n"
    for key, words in FAMILIES.items():
        if not words:
            continue
        cells = [
            cell({n: t for n, t in tests.items() if t["family"] == key}, notes, members_of(key))
            for tests in map(results.__getitem__, kernels)
        ]
        text += f"| {words} | {' | '.join(cells)} |\n"
    return f"{text}\n{notes.lines()}"


def _version(tests: Mapping[str, Test]) -> str:
    return str(max(tests.values(), key=lambda test: str(test["date"]))["version"])


def _column(name: str, version: str) -> str:
    return f"{name} ({version})" if name == "newest" else name


def figures(results: Results) -> str:
    """Measured values, one row per value and kernel."""
    text = "| measured by | figure | " + " | ".join(KERNELS) + " |\n|---|---|"
    text += "---|" * len(KERNELS) + "\n"
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for kernel in KERNELS:
        for name, test in results.get(kernel, {}).items():
            for figure, value in test["figures"].items():
                rows.setdefault((_said(name), figure), {})[kernel] = value
    for (name, figure), values in sorted(rows.items()):
        cells = " | ".join(str(values.get(kernel, "")) for kernel in KERNELS)
        text += f"| {name} | {figure.replace('_', ' ')} | {cells} |\n"
    return text


def targets(results: Results) -> str:
    """Symbols of built drivers that the sensor uses."""
    tests = results.get("drivers", {})
    if not tests:
        return "Not run.\n"
    return "| what | outcome |\n|---|---|\n" + "".join(
        f"| {_said(name)} | {_outcome(test)} |\n" for name, test in tests.items()
    )


def every_test(results: Results) -> str:
    """One row per test."""
    kernels = [name for name in KERNELS if name in results]
    text = f"| test | {' | '.join(kernels)} |\n|---|{'---|' * len(kernels)}\n"
    for name in sorted({name for kernel in kernels for name in results[kernel]}):
        cells = (_outcome(results[kernel].get(name)) for kernel in kernels)
        text += f"| `{name}` | {' | '.join(cells)} |\n"
    return text


def _outcome(test: Test | None) -> str:
    if test is None:
        return "not run"
    if test["outcome"] == "passed":
        return f"passed, {test['seconds']:.0f} s, {test['commit']}, load {test['load']:.0f}"
    return f"{test['outcome']}: {test['reason']}"


def report(results: Results) -> str:
    """The complete docs/bench/hardware.md."""
    dates = sorted({str(test["date"]) for tests in results.values() for test in tests.values()})
    when = f"Run on {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "") + ".\n\n"
    return "".join(
        (
            *(HEAD, when, "## Matrix\n\n", matrix(results)),
            *("\n## Figures\n\n", figures(results)),
            *("\n## Functions of built drivers\n\n", targets(results)),
            *("\n## Every test\n\n", every_test(results)),
        )
    )


def page(results: Results, before: str) -> str:
    """docs/hardware.md with the matrix and the figures between its two marks."""
    head, _, rest = before.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n{matrix(results)}\n{figures(results)}\n{END}{tail}"


def _load(file: Path) -> Results:
    loaded: Results = json.loads(file.read_text()) if file.exists() else {}
    return loaded


def main(arguments: list[str]) -> int:
    """Write or compare; the exit code."""
    results = _load(DATA)
    if "--take" in arguments:
        results = take(results, _load(TAKEN))
    texts = {
        DATA: json.dumps(results, indent=1, ensure_ascii=False) + "\n",
        REPORT: report(results),
        PAGE: page(results, PAGE.read_text()),
    }
    return keep(texts, arguments, "tools/hardware_doc.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
