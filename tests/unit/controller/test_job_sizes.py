"""What a job occupies, from the pods and nodes that the controller keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.api.incident_parts import JobSize
from kcover_ebpf.api.pods import pod_of
from kcover_ebpf.cli import main
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.job_sizes import GpuPrices, JobSizes
from kcover_ebpf.recovery.nodes.others import kept_of_node
from kcover_ebpf.recovery.restart.context import GangPod

PRICES = GpuPrices({"H100": 2.5}, "EUR")


def pod(number: int, node: str, *limits: Any) -> GangPod:
    containers = [{"name": f"c{at}", "resources": {"limits": one}} for at, one in enumerate(limits)]
    spec = {"nodeName": node, "containers": containers}
    raw = {"metadata": {"name": f"p{number}", "uid": f"u{number}", "namespace": "ml"}, "spec": spec}
    return GangPod(pod_of(raw))


def sizes(**products: str) -> JobSizes:
    store = ObjectCache(lambda _: None)
    for name, product in products.items():
        labels = {"nvidia.com/gpu.product": product, "other": "x"}
        store.raw_nodes[name] = kept_of_node({"metadata": {"name": name, "labels": labels}})
        assert store.raw_nodes[name]["metadata"]["labels"] == {"nvidia.com/gpu.product": product}
    return JobSizes(store, PRICES)


def test_job_sizes__whole_gpus_are_counted_and_priced_by_the_model_of_most() -> None:
    eight = {"nvidia.com/gpu": "8", "cpu": "4"}
    pods = [pod(0, "a", eight), pod(1, "a", eight, {"amd.com/gpu": 2}), pod(2, "b", eight)]
    ended = pod(3, "b", eight)
    pods.append(replace(ended, pod=replace(ended.pod, phase="Failed")))
    found = sizes(a="H100", b="H200").of(pods, 5.0)
    assert found == JobSize(26, "H100", 2.5, "EUR", 5.0)
    assert (found.gpu_hours(1800.0), found.price_of(1800.0)) == (13.0, 32.5)


@pytest.mark.parametrize("limit", [None, {"nvidia.com/gpu": "many"}, {"nvidia.com/mig-1g.10gb": 1}])
def test_job_sizes__what_is_no_number_of_whole_gpus_counts_as_none(limit: Any) -> None:
    assert sizes(a="H100").of([pod(0, "a", limit)], None) == JobSize()


def test_job_sizes__a_model_without_a_price_has_none() -> None:
    found = sizes(a="H200").of([pod(0, "a", {"nvidia.com/gpu": 1}), pod(1, "unknown")], None)
    assert (found.gpus, found.product, found.hour_price, found.price_of(1.0)) == (
        1,
        "H200",
        None,
        None,
    )


@pytest.mark.parametrize("text", ["H100", "=2", "H100=free", "H100=-1", "H100=nan"])
def test_main__a_price_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert main(["controller", "--gpu-price", text]) == 2
    assert "write MODEL=PRICE" in capsys.readouterr().err
