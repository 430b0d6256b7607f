"""The permissions that agent and controller have by the chart, and what each group of them is for."""

from typing import NamedTuple


class Permission(NamedTuple):
    """One verb on one resource; `group` "" is the core group."""

    verb: str
    group: str
    resource: str


def permissions(group: str, resources: str, verbs: str) -> set[Permission]:
    return {Permission(verb, group, part) for verb in verbs.split() for part in resources.split()}


AGENT = (
    permissions("", "pods", "list watch")
    | permissions("kcover.io", "faultpolicies incidents jobkinds", "list watch")
    | permissions("kcover.io", "faultreports", "create patch delete")
    | permissions("kcover.io", "nodehealths", "create patch")
)
OF_JOBS = permissions("batch", "jobs", "get patch")
OF_OTHER_KINDS = (
    permissions("kubeflow.org", "pytorchjobs tfjobs xgboostjobs", "get patch")
    | permissions("kubeflow.org", "paddlejobs jaxjobs mpijobs", "get patch")
    | permissions("trainer.kubeflow.org", "trainjobs", "get patch")
    | permissions("jobset.x-k8s.io", "jobsets", "get patch")
    | permissions("ray.io", "rayjobs rayclusters", "get patch")
    | permissions("kueue.x-k8s.io", "workloads", "list patch")
    | permissions("leaderworkerset.x-k8s.io", "leaderworkersets", "get")
    | permissions("apps", "statefulsets", "get")
    | permissions("batch.volcano.sh", "jobs", "get")
    | permissions("bus.volcano.sh", "commands", "create")
    | permissions("", "pods", "delete")
)
OF_NODES = permissions("", "nodes nodes/status", "patch")
OF_DEVICES = permissions("resource.k8s.io", "devicetaintrules", "create list delete") | permissions(
    "resource.k8s.io", "resourceslices", "list"
)
CONTROLLER = (
    permissions("", "pods", "get list watch deletecollection")
    | permissions("", "pods/eviction", "create")
    | permissions("discovery.k8s.io", "endpointslices", "list")
    | permissions("", "nodes", "list watch")
    | permissions("", "events", "list watch create patch")
    | permissions("kcover.io", "faultpolicies faultreports jobkinds", "list watch")
    | permissions("kcover.io", "jobkinds/status", "patch")
    | permissions("kcover.io", "nodehealths", "list watch delete")
    | permissions("kcover.io", "incidents", "list watch create patch delete")
    | permissions("kcover.io", "incidents/status", "update")
    | OF_JOBS
    | OF_OTHER_KINDS
    | OF_NODES
    | OF_DEVICES
)
AT_HOME = {
    # Its own lease (an admission policy says which that is).
    "agent": permissions("coordination.k8s.io", "leases", "create patch list delete"),
    # The lease that leads, by its name but for `create`; those of the agents.
    "controller": permissions(
        "coordination.k8s.io", "leases", "create get update delete list watch"
    ),
}
