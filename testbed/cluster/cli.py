"""The command line: tools/testbed up | build | down | status | load | exec | reboot."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from testbed.cluster import addons, down, images, layout, nodes, oci, state, status, up, versions
from testbed.cluster.errors import Failure, Usage
from testbed.cluster.layout import Bed, Node
from testbed.cluster.state import State


def parser() -> argparse.ArgumentParser:
    """The verbs and their options; a mistake ends the program with one line and code 2."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--name", default=layout.DEFAULT_NAME, help="which test bed, to have several side by side"
    )
    top = argparse.ArgumentParser(prog="tools/testbed", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")

    verb = verbs.add_parser("up", parents=[common], help="bring it up, or what is missing of it")
    verb.add_argument("--nodes", type=int, help="how many nodes (2)")
    verb.add_argument("--kubernetes", metavar="MINOR", help="which Kubernetes, such as 1.34")
    verb.add_argument(
        "--controllers",
        metavar="A,B",
        help=f"job controllers to add: {', '.join(addons.names())}; all, or none "
        f"({','.join(addons.DEFAULT)})",
    )
    verb = verbs.add_parser("build", help="make programs and images, and start nothing")
    verb.add_argument("--kubernetes", metavar="MINOR", help="which Kubernetes, such as 1.34")
    verbs.add_parser("down", parents=[common], help="remove all of it")
    verb = verbs.add_parser("status", parents=[common], help="what runs and is well")
    verb.add_argument("-o", "--output", choices=["table", "json"], default="table")
    verb = verbs.add_parser("load", parents=[common], help="put an image on every node")
    verb.add_argument("archive", type=Path, help="an OCI or Docker archive")
    verb.add_argument("--as", dest="image", help="its name, where the archive holds none")
    verb = verbs.add_parser("exec", parents=[common], help="run a command on a node")
    verb.add_argument("node")
    verb.add_argument("command", nargs=argparse.REMAINDER)
    verb = verbs.add_parser(
        "reboot", parents=[common], help="cut a node's power and start it again"
    )
    verb.add_argument("node")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except Failure as failure:
        print(f"testbed: {failure}", file=sys.stderr)
        return failure.exit_code
    except KeyboardInterrupt:
        print("testbed: interrupted; `up` continues from here, `down` cleans up", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.verb == "build":
        _check_root()
        with up.stage("programs and images"):
            up.fill_cache(versions.kubernetes(options.kubernetes))
        return 0
    if not layout.NAME.fullmatch(options.name):
        raise Usage(f"--name {options.name}: use up to 20 of a-z, 0-9 and -")
    wanted = _wanted(options) if options.verb == "up" else None
    bed = Bed.of_checkout(options.name)
    state.check_owner(bed)
    if options.verb == "status":
        return status.show(bed, options.output == "json")
    _check_root()
    if options.verb == "exec":
        _exec(bed, options.node, options.command)
    if options.verb == "load":
        _load(bed, options.archive, options.image)
        return 0
    with state.locked(bed):
        state.check_owner(bed)  # another checkout's `up` may have been at work until now
        if wanted is not None:
            _up(bed, wanted)
        elif options.verb == "down":
            with up.stage("down"):
                down.bring_down(bed)
        elif options.verb == "reboot":
            running, node = _node(bed, options.node)
            nodes.stop(running, node)
            nodes.ensure(running, node)
    return 0


def _check_root() -> None:
    if os.geteuid() != 0:
        raise Failure("run it as root: it makes namespaces, mounts and cgroups")


def _wanted(options: argparse.Namespace) -> up.Wanted:
    """What `up` shall do; raises Usage where that makes no sense."""
    if options.nodes is not None and not 1 <= options.nodes <= layout.MAX_NODES:
        raise Usage(f"--nodes {options.nodes}: from 1 to {layout.MAX_NODES}")
    versions.kubernetes(options.kubernetes)
    controllers = addons.chosen(options.controllers)
    return up.Wanted(options.nodes, options.kubernetes, controllers)


def _up(bed: Bed, wanted: up.Wanted) -> None:
    up.bring_up(bed, wanted)
    shown = os.path.relpath(bed.kubeconfig)
    print(f"testbed: up; export KUBECONFIG={shown}", flush=True)


def _load(bed: Bed, archive: Path, image: str | None) -> None:
    running = _running(bed)
    try:
        names = oci.names(archive)
    except (OSError, ValueError) as error:
        raise Usage(str(error)) from error
    if not names and image is None:
        raise Usage(f"{archive} does not say the image's name: add --as NAME:TAG")
    for node in bed.nodes(running.nodes):
        with up.stage(f"{image or ', '.join(names)} on {node.name}"):
            images.load(nodes.path(running, node, nodes.CONTAINERD_SOCKET), archive, image)


def _exec(bed: Bed, name: str, command: list[str]) -> None:
    """Become the command, on the node."""
    running, node = _node(bed, name)
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        raise Usage("exec wants a command: tools/testbed exec node1 -- ctr -n k8s.io tasks ls")
    prefix = list(map(str, nodes.entered(running, node)))
    os.execvp(prefix[0], [*prefix, *words])


def _running(bed: Bed) -> State:
    running = state.load(bed)
    if running is None:
        raise Failure(f"the test bed {bed.name!r} is not up: tools/testbed up")
    return running


def _node(bed: Bed, name: str) -> tuple[State, Node]:
    running = _running(bed)
    for node in bed.nodes(running.nodes):
        if node.name == name:
            return running, node
    raise Usage(f"no node {name}: there are node1 to node{running.nodes}")
