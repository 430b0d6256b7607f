"""Every kind of job that is to be restarted trains under its real controller."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests import skips
from tests.cluster.cluster import JOBS, Namespace


class Kind(NamedTuple):
    """An example in jobs/: who runs it, what it is, which pods train."""

    controller: str
    resource: str
    selector: str
    ranks: int


KUBEFLOW = "training.kubeflow.org/job-name=demo"
KINDS = {
    "tfjob": Kind("training-operator", "tfjobs.kubeflow.org", KUBEFLOW, 2),
    "xgboostjob": Kind("training-operator", "xgboostjobs.kubeflow.org", KUBEFLOW, 2),
    "paddlejob": Kind("training-operator", "paddlejobs.kubeflow.org", KUBEFLOW, 2),
    "jaxjob": Kind("training-operator", "jaxjobs.kubeflow.org", KUBEFLOW, 2),
    "lws": Kind(
        "lws",
        "leaderworkersets.leaderworkerset.x-k8s.io",
        "leaderworkerset.sigs.k8s.io/name=demo",
        2,
    ),
    "trainjob": Kind(
        "trainer", "trainjobs.trainer.kubeflow.org", "jobset.sigs.k8s.io/jobset-name=demo", 2
    ),
    "volcano": Kind("volcano", "jobs.batch.volcano.sh", "volcano.sh/job-name=demo", 2),
    "kueue-job": Kind(
        "kueue", "clusterqueues.kueue.x-k8s.io", "batch.kubernetes.io/job-name=demo", 2
    ),
}


@pytest.fixture
def ready(namespace: Namespace, install: Callable[[str], None]) -> Callable[[str, str], Namespace]:
    """The test's namespace, once the controller is installed; skips where it cannot be."""

    def checked(controller: str, resource: str) -> Namespace:
        install(controller)
        if not namespace.cluster.serves(resource):
            skips.skip(controller, "the cluster of $KUBECONFIG does not have it")
        return namespace

    return checked


@pytest.mark.timeout(900, func_only=True)  # the controller may have to be built
@pytest.mark.parametrize("example", KINDS)
def test_it_trains(ready: Callable[[str, str], Namespace], example: str) -> None:
    kind = KINDS[example]
    namespace = ready(kind.controller, kind.resource)
    if example == "kueue-job":
        namespace.cluster.ctl("apply", f"--filename={JOBS / 'kueue-queue.yaml'}")
    namespace.start(example)
    namespace.wait_for_steps(kind.selector, kind.ranks, 5)


@pytest.mark.timeout(900, func_only=True)
def test_an_mpi_job_trains_over_ssh(ready: Callable[[str, str], Namespace]) -> None:
    namespace = ready("mpi-operator", "mpijobs.kubeflow.org")
    namespace.start("mpijob")
    launcher = "training.kubeflow.org/job-role=launcher"
    namespace.wait_for_pods(launcher, 1)
    (pod,) = namespace.pods(launcher)
    for rank in (0, 1):
        namespace.wait_for_log(pod["metadata"]["name"], rf"rank {rank} step 5$", 180)
