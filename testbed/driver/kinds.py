"""The kinds of jobs that are restarted whole: the example of each, and how a test finds its way around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed import skips
from testbed.driver.cluster import JOBS, ClusterError, Namespace
from testbed.driver.fake_agent import processes
from testbed.driver.restarts import row_of

_QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "LocalQueue",
    "metadata": {"name": "queue"},
    "spec": {"clusterQueue": "demo"},
}
BOTH = ("InPlace", "Replace")
KUBEFLOW = "training.kubeflow.org/job-name=demo"
JOBSET = "jobset.sigs.k8s.io/jobset-name=demo"


@dataclass(frozen=True)
class Kind:
    """One kind; its example is jobs/`file`.yaml, and calls its job demo."""

    file: str
    controller: str
    """As `tools/testbed up --controllers` takes it; empty: it is part of Kubernetes."""
    api_version: str
    kind: str
    selector: str
    pods: int = 2
    ways: tuple[str, ...] = BOTH
    ranks: str = ""
    """Further labels of the pods that hold a rank; empty: all of them do."""
    speaker: str = ""
    """Labels of the one pod that logs for all ranks; empty: each logs for itself."""
    numbered: bool = True
    """The environment of a rank gives its number."""
    queued: bool = False
    """Kueue admits it."""

    @property
    def plural(self) -> str:
        """As kubectl wants it."""
        row = row_of(self.api_version, self.kind)
        return f"{row.plural}.{row.group}" if row.group else row.plural


def _kubeflow(kind: str, numbered: bool = True, pods: int = 2) -> Kind:
    controller, version = "training-operator", "kubeflow.org/v1"
    return Kind(kind.lower(), controller, version, kind, KUBEFLOW, pods, numbered=numbered)


_JOB = ("batch/v1", "Job", "batch.kubernetes.io/job-name=demo")
_JOBSET = ("jobset.x-k8s.io/v1alpha2", "JobSet", JOBSET)
KINDS = {
    "jobset": Kind("jobset", "jobset", *_JOBSET),
    "job": Kind("job", "", *_JOB),
    "trainjob": Kind("trainjob", "trainer", "trainer.kubeflow.org/v1alpha1", "TrainJob", JOBSET),
    "mpijob": Kind(
        *("mpijob", "mpi-operator", "kubeflow.org/v2beta1", "MPIJob", KUBEFLOW, 3),
        ranks="training.kubeflow.org/job-role=worker",
        speaker="training.kubeflow.org/job-role=launcher",
    ),
    "lws": Kind(
        *("lws", "lws", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
        "leaderworkerset.sigs.k8s.io/name=demo",
        ways=("Replace",),
    ),
    "volcano": Kind(
        "volcano", "volcano", "batch.volcano.sh/v1alpha1", "Job", "volcano.sh/job-name=demo"
    ),
    "raycluster": Kind("raycluster", "kuberay", "ray.io/v1", "RayCluster", "ray.io/cluster=demo"),
    # the label of its RayCluster is another one in each run
    "rayjob": Kind("rayjob", "kuberay", "ray.io/v1", "RayJob", "app=demo", ways=("Replace",)),
    "pytorchjob": _kubeflow("PyTorchJob", pods=4),
    # their frameworks give a rank no number: TF_CONFIG holds names, Paddle's launcher numbers
    "tfjob": _kubeflow("TFJob", numbered=False),
    "paddlejob": _kubeflow("PaddleJob", numbered=False),
    "xgboostjob": _kubeflow("XGBoostJob"),
    "jaxjob": _kubeflow("JAXJob"),
    "kueue-job": Kind("job", "kueue", *_JOB, queued=True),
    "kueue-jobset": Kind("jobset", "kueue", *_JOBSET, queued=True),
    "statefulset": Kind(
        "statefulset", "", "apps/v1", "StatefulSet", "app=demo", ways=("Replace",), numbered=False
    ),
}


SPREAD = """restartPolicy: Never
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {batch.kubernetes.io/job-name: demo}}"""
"""In place of `restartPolicy: Never` of the example Job: its pods are spread over all nodes."""


def start(namespace: Namespace, kind: Kind, change: Callable[[str], str] = str) -> None:
    """Start the example, changed as text, and wait until it trains; skips where its controller is not there."""
    resource = "clusterqueues.kueue.x-k8s.io" if kind.queued else kind.plural
    if not namespace.cluster.serves(resource):
        skips.skip(kind.controller, "the cluster of $KUBECONFIG does not have it")
    objects = list(yaml.safe_load_all(change((JOBS / f"{kind.file}.yaml").read_text())))
    if kind.queued:
        namespace.cluster.ctl("apply", f"--filename={JOBS / 'kueue-queue.yaml'}")
        objects[-1]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "queue"}
        objects.insert(0, _QUEUE)
    namespace.apply(yaml.safe_dump_all(objects))
    wait_for_training(namespace, kind)


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """The text of an example with other words; each that is to be replaced has to be there."""
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def sized(text: str, pods: int) -> str:
    """The example of a Job or JobSet with the given number of pods."""
    return replaced(
        text,
        {
            "completions: 2": f"completions: {pods}",
            "parallelism: 2": f"parallelism: {pods}",
            'value: "2"': f'value: "{pods}"',
        },
    )


def with_checkpoints(every: int, seconds: float, path: str = "/tmp/checkpoint") -> Any:
    """Rank 0 of the example Job saves every few steps of half a second, while the other waits."""
    reported = {"EVERY": every, "SECONDS": seconds, "PATH": path}
    variables = [
        f'{{name: CHECKPOINT_{name}, value: "{value}"}}' for name, value in reported.items()
    ]
    return lambda text: text.replace("env: [", f"env: [{', '.join(variables)}, ")


def wait_for_training(namespace: Namespace, kind: Kind, steps: int = 3) -> None:
    """Wait until all pods are ready and each rank has made the given number of steps since its last start."""
    if not kind.speaker:
        namespace.wait_for_steps(kind.selector, kind.pods, steps)
        return
    for name in namespace.wait_for_pods(kind.selector, kind.pods):
        namespace.wait(f"pod/{name}", "condition=Ready", 180)
    (pod,) = namespace.pods(f"{kind.selector},{kind.speaker}")
    for rank in range(len(rank_pods(namespace, kind))):
        namespace.wait_for_log(pod["metadata"]["name"], rf"rank {rank} step {steps}$", 180)


def wait_until_learned(namespace: Namespace, kind: Kind, timeout_s: float = 90.0) -> None:
    """Wait until the agent of each node says that the ranks train."""
    nodes = {pod["spec"]["nodeName"] for pod in rank_pods(namespace, kind)}
    uids = {pod["metadata"]["uid"] for pod in rank_pods(namespace, kind)}
    deadline = time.monotonic() + timeout_s
    while True:
        reports = [item["spec"] for item in namespace.items("faultreports")]
        reported = {
            report["node"]
            for report in reports
            if report.get("trained")
            and not report.get("suspicious")
            and uids & {pod["uid"] for pod in report.get("pods", ())}
        }
        if reported >= nodes:
            return
        if time.monotonic() > deadline:
            raise ClusterError(f"the agents of {nodes - reported} do not say that the ranks train")
        time.sleep(0.5)


def rank_pods(namespace: Namespace, kind: Kind) -> list[dict[str, Any]]:
    """The pods that hold a rank, by name."""
    selector = f"{kind.selector},{kind.ranks}" if kind.ranks else kind.selector
    return sorted(namespace.pods(selector), key=lambda pod: pod["metadata"]["name"])


def rank_of(namespace: Namespace, kind: Kind, pod: Mapping[str, Any]) -> int:
    """The rank in a pod, as it says itself."""
    if kind.speaker:
        environ = Path(f"/proc/{process(pod)}/environ").read_bytes().split(b"\0")
        (value,) = [chunk for chunk in environ if chunk.startswith(b"OMPI_COMM_WORLD_RANK=")]
        return int(value.partition(b"=")[2])
    return int(namespace.wait_for_log(pod["metadata"]["name"], r"^rank (\d+) ")[1])


def process(pod: Mapping[str, Any]) -> int:
    """The pid, on this host, of the training in a pod."""
    for pid in sorted(processes(pod["metadata"]["uid"])):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"python3") and any(word.endswith(b"train.py") for word in words):
            return pid
    raise ClusterError(f"nothing trains in pod {pod['metadata']['name']} on this host")
