"""The table of restarts: shipped rows, and rows that do not fit."""

import pytest

from kcover_ebpf.recovery.restart.methods import at, parse, restarts


def test_restarts__a_kind_is_found_whatever_its_version():
    table = restarts()
    assert table.find("kubeflow.org/v1", "MPIJob") is table.find("kubeflow.org/v2beta1", "MPIJob")
    assert table.find("batch/v1", "Job") is not table.find("batch.volcano.sh/v1alpha1", "Job")
    assert table.find("apps/v1", "Deployment") is None
    assert table.find("v1", "Pod") is None


@pytest.mark.parametrize(
    "row",
    [
        'method = "suspend"\ncounters = []',
        'method = "leader"\ncounters = []',
        'method = "pray"\ncounters = []',
        'method = "delete"\ncounters = []\nsuspent = "spec.suspend"',
    ],
    ids=["suspend without a path", "leader without a label", "unknown method", "unknown key"],
)
def test_parse__a_row_that_does_not_fit_is_refused(row):
    queue = '[queue]\nlabel="l"\ngroup="g"\nplural="p"\nfind="f"\nactive="spec.active"\n'
    head = f'{queue}[[kind]]\nkind = "X"\ngroup = "g"\nplural = "xs"\n'
    with pytest.raises(ValueError, match=r"fit its method|pray|suspent"):
        parse(head + row)


def test_at__a_path_that_leads_nowhere_is_none():
    assert at({"spec": {"suspend": True}}, ("spec", "suspend")) is True
    assert at({"spec": 3}, ("spec", "suspend")) is None
