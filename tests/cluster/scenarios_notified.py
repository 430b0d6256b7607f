"""What a person asks for, and of what a person is notified: a restart on demand, and messages to real local servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from testbed.driver.cluster import Namespace, until
from testbed.driver.restarts import incidents, policy, recover, running
from tests.cluster.crowd import Book
from tests.cluster.faked_job import break_rank, check_acted_once, faked, started, uids
from tests.unit.notify.mail_server import mail_server
from tests.unit.support.fake_api_server import Answer, serving

BOOK = Book()
_PLUGIN = "import sys; from kcover_ebpf.cli.kubectl import main; sys.exit(main())"


@BOOK.scenario()
def a_job_that_trains_is_restarted_once_on_demand(namespace: Namespace) -> None:
    in_place = namespace.cluster.arms_pods
    policy(namespace, ways=["InPlace" if in_place else "Replace"])
    started(namespace, in_place=in_place)
    old = uids(namespace)
    asked = [sys.executable, "-c", _PLUGIN, "restart", "demo", f"--namespace={namespace.name}"]
    asked += ["--wait", "--timeout=3m"]
    environment = os.environ | {"KUBECONFIG": str(namespace.cluster.kubeconfig)}
    with faked(namespace):
        both = [
            subprocess.Popen(asked, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        said = [program.communicate()[0] for program in both]
    print(said[0])
    assert [program.returncode for program in both] == [0, 0], said
    for text in said:
        assert "ShuttingDown" in text
        assert "Recovered" in text
    (incident,) = incidents(namespace)
    assert incident["status"]["cause"] == "requested"
    check_acted_once(namespace, old, "InPlace" if in_place else "Replace")


@BOOK.scenario(brings_controller=True)
def the_owner_of_a_job_is_notified_once_in_each_form(namespace: Namespace) -> None:
    names = ["hook", "events", "slack", "mail"]
    policy(namespace, ways=["Replace"], notify=[{"target": name} for name in names])
    started(namespace)
    namespace.ctl("annotate", "job", "demo", "kcover.io/owner=ada@example.com")
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(lambda _: Answer()) as server,
        mail_server() as mails,
    ):
        secrets, file = Path(folder) / "secrets", Path(folder) / "notifications.json"
        secrets.mkdir()
        (secrets / "slack").write_text(f"{server.url}/slack")
        targets = _targets(server.url, mails.port)
        file.write_text(json.dumps({"targets": targets}))
        options = [f"--notifications={file}", f"--notification-secrets={secrets}"]
        log = Path(folder) / "log"
        with running(namespace, log, options=options), faked(namespace) as fake:
            break_rank(namespace, fake)
            recover(namespace, fake)
            until(lambda: len(server.requests) == 3 and bool(mails.mails), "messages")
            until(lambda: len(_notified(namespace)) == len(names), "what is noted on the incident")
    sent = {request.path: request.body for request in server.requests}
    assert set(sent) == {"/hook", "/events", "/slack"}
    assert sent["/hook"]["owner"] == "ada@example.com"
    assert "was restarted and makes progress again" in sent["/hook"]["text"]
    assert sent["/events"]["type"] == "io.kcover.incident.recovered"
    assert "Job" in sent["/slack"]["text"]
    ((recipients, mail),) = mails.mails
    assert recipients == ["ada@example.com"]
    assert "kubectl kcover explain" in mail


def _targets(url: str, mail_port: int) -> list[dict[str, Any]]:
    template = '{"text": "${summary}", "owner": "${owner}"}'
    return [
        {"name": "hook", "form": "Webhook", "url": f"{url}/hook", "template": template},
        {"name": "events", "form": "CloudEvents", "url": f"{url}/events"},
        {"name": "slack", "form": "Slack", "urlKey": "slack"},
        {
            "name": "mail",
            "form": "Email",
            "server": f"127.0.0.1:{mail_port}",
            "security": "None",
            "sender": "gpu@example.com",
            "ownerDomains": ["example.com"],
        },
    ]


def _notified(namespace: Namespace) -> list[str]:
    (incident,) = incidents(namespace)
    notes = incident["metadata"].get("annotations") or {}
    return str(notes.get("kcover.io/notified", "")).split()
