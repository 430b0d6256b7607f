"""Draw docs/images/incidents.svg from a real run: `kubectl get incidents -w` while a rank hangs and is restarted.

PYTHONPATH=. /usr/bin/python3 -m bench.demo.incidents_picture [FOLDER OF A TEST BED WITH THE RELEASE IN IT]

Without an argument it makes test bed, image and release, as `make demo-cluster` does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.demo import cluster
from bench.demo.svg import picture

TARGET = cluster.ROOT / "docs/images/incidents.svg"


def main(arguments: list[str]) -> int:
    """Make the picture; 1 if the wrong pod was named or the job did not train again."""
    if arguments:
        cluster.BED = Path(arguments[0]).resolve()
    else:
        cluster.set_up()
    cluster.start_job()
    with tempfile.TemporaryFile("w+") as said:
        command = cluster.kubectl("get", "incidents", "--watch")
        with subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL) as watch:
            right = cluster.hurt_and_watch("for the picture")
            watch.terminate()
        said.seek(0)
        lines = said.read()
    cluster.clean_up()
    if right:
        prompt = f"$ kubectl get incidents -n {cluster.NAMESPACE} -w\n"
        title = "one rank of a PyTorchJob gets SIGSTOP"
        TARGET.write_text(picture(prompt + lines, title), "utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
