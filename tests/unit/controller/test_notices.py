"""Who is notified of an incident by the policy of its job, and what the next leader still says."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from kcover_ebpf.api.incident import NOTIFIED, Incident, Phase, object_of, status_of
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.notices import Notices
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.notify.target import MessageForm, NotifyTarget
from kcover_ebpf.tunables.sending import CAUGHT_UP_S
from tests.unit.notify.notified_incidents import incident, status
from tests.unit.support.fake_api_server import Answer, Request, serving

NOW_S = 1_700_000_020.0


class NotingWriter:
    """Writes the annotation into the object, as the API server would."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.written = threading.Event()

    def note_notified(self, known: Incident, notified: str) -> dict[str, Any]:
        self.noted.append(notified)
        assert known.status is not None
        raw = object_of(known) | {"status": status_of(known.status)}
        raw["metadata"] |= {
            "uid": known.uid,
            "resourceVersion": str(int(known.resource_version) + 1),
            "annotations": {NOTIFIED: notified},
        }
        self.written.set()
        return raw


def policy(target: str) -> Event:
    spec = {"notify": [{"target": target}]}
    return Event(
        Change.SET, {"metadata": {"namespace": "ml", "name": "p", "uid": "p"}, "spec": spec}
    )


def test_notices__the_next_leader_says_what_the_one_before_did_not() -> None:
    hooks: list[str] = []

    def answer(request: Request) -> Answer:
        hooks.append(request.body["incident"])
        return Answer()

    store = ObjectCache(lambda _: None, wall=lambda: NOW_S)
    store.on_policy(policy("hook"))
    said = incident("said", status=status(), resource_version="1", notified=("hook:Recovered",))
    store.put(said)
    store.put(incident("new", status=status(), resource_version="1"))
    store.put(incident("busy", status=status(Phase.RECOVERING), resource_version="1"))
    writer: Any = NotingWriter()
    with serving(answer) as server:
        notices = Notices(
            store, writer, [NotifyTarget("hook", MessageForm.WEBHOOK, server.url)], None
        )
        notices.catch_up()
        notices.notifier.start()
        assert writer.written.wait(20.0)
        notices.catch_up()
        notices.notifier.close(20.0)
    assert hooks == ["new"]
    assert writer.noted == ["hook:Recovered"]
    assert store.incidents["ml", "new"].notified == ("hook:Recovered",)


def test_notices__what_ended_long_ago_is_old_news(tmp_path: Path) -> None:
    store = ObjectCache(lambda _: None, wall=lambda: NOW_S + CAUGHT_UP_S)
    store.on_policy(policy("hook"))
    store.put(incident("new", status=status(), resource_version="1"))
    with serving(lambda _: Answer()) as server:
        target = NotifyTarget("hook", MessageForm.WEBHOOK, server.url)
        notices = Notices(store, NotingWriter(), [target], tmp_path)  # type: ignore[arg-type]
        notices.catch_up()
        notices.notifier.start()
        notices.notifier.close(20.0)
        assert not server.requests
