"""The thread that carries out orders: what it survives, and what it reports. No process is signalled here."""

from __future__ import annotations

from pathlib import Path

from kcover_ebpf.agent.containers import Containers
from kcover_ebpf.agent.ledger import Ledger
from kcover_ebpf.agent.naming import key_of
from kcover_ebpf.agent.orders import Evidence, Executor, Listeners
from kcover_ebpf.agent.registry import Registry
from kcover_ebpf.cluster.kinds import Gang
from kcover_ebpf.cluster.order import Order, Verb
from kcover_ebpf.cluster.report import Ack, AckResult

NOW_S = 1000.0
GANG = Gang("team", "train", "PyTorchJob", (("job", "train"),))


def order(number: str, verb: Verb = Verb.STOP) -> Order:
    return Order(number, verb, dict(GANG.selector), NOW_S, NOW_S + 10)


def executor(ledger: Ledger, folder: Path, said: list[str] | None = None) -> Executor:
    told = [] if said is None else said
    listeners = Listeners(
        acked=lambda _gang, _ack: None,
        killed=lambda _gang: None,
        evidence=lambda _gang, _found: Evidence("/bundle", lambda: None),
        passed_over=told.append,
    )
    return Executor(Registry("n"), Containers([folder]), ledger, listeners, lambda: NOW_S)


def test_a_restarted_agent_reports_no_more_acks_than_the_schema_admits(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "orders.json")
    for number in range(12):
        ledger.begin(order(str(number)), key_of(GANG))
        ledger.finish(Ack(str(number), Verb.STOP, AckResult.DONE, 8))
    again = executor(Ledger(tmp_path / "orders.json"), tmp_path)
    assert [each.order for each in again.acks(GANG)] == [str(number) for number in range(4, 12)]
