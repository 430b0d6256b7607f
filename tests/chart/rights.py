"""The rights that agent and controller have by the chart, and what each group of them is for."""

from typing import NamedTuple


class Right(NamedTuple):
    """One verb on one resource; `group` "" is the core group."""

    verb: str
    group: str
    resource: str


def rights(group: str, resources: str, verbs: str) -> set[Right]:
    return {Right(verb, group, each) for verb in verbs.split() for each in resources.split()}


AGENT = (
    rights("", "pods", "list watch")
    | rights("kcover.io", "faultpolicies incidents", "list watch")
    | rights("kcover.io", "faultreports", "create patch delete")
    | rights("kcover.io", "nodehealths", "create patch")
)
OF_JOBS = rights("batch", "jobs", "get patch")
OF_OTHER_KINDS = (
    rights("kubeflow.org", "pytorchjobs tfjobs xgboostjobs", "get patch")
    | rights("kubeflow.org", "paddlejobs jaxjobs mpijobs", "get patch")
    | rights("trainer.kubeflow.org", "trainjobs", "get patch")
    | rights("jobset.x-k8s.io", "jobsets", "get patch")
    | rights("ray.io", "rayjobs rayclusters", "get patch")
    | rights("kueue.x-k8s.io", "workloads", "list patch")
    | rights("leaderworkerset.x-k8s.io", "leaderworkersets", "get")
    | rights("apps", "statefulsets", "get")
    | rights("batch.volcano.sh", "jobs", "get")
    | rights("bus.volcano.sh", "commands", "create")
    | rights("", "pods", "delete")
)
OF_NODES = rights("", "nodes nodes/status", "patch")
OF_DEVICES = rights("resource.k8s.io", "devicetaintrules", "create list delete") | rights(
    "resource.k8s.io", "resourceslices", "list"
)
CONTROLLER = (
    rights("", "pods", "get list watch deletecollection")
    | rights("", "nodes", "list watch")
    | rights("", "events", "list watch create patch")
    | rights("kcover.io", "faultpolicies faultreports", "list watch")
    | rights("kcover.io", "nodehealths", "list watch delete")
    | rights("kcover.io", "incidents", "list watch create patch delete")
    | rights("kcover.io", "incidents/status", "update")
    | OF_JOBS
    | OF_OTHER_KINDS
    | OF_NODES
    | OF_DEVICES
)
AT_HOME = {
    # Its own lease (an admission policy says which that is).
    "agent": rights("coordination.k8s.io", "leases", "create patch list"),
    # The lease that leads, by its name but for `create`; those of the agents.
    "controller": rights("coordination.k8s.io", "leases", "create get update list watch"),
}
