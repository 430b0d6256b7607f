"""What the command refuses, and that it says so in one line; nothing here observes anything."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kcover_ebpf import cli
from kcover_ebpf.errors import CannotObserve, LoadError
from kcover_ebpf.run import main
from kcover_ebpf.run.options import RunOptions, name_of
from kcover_ebpf.settings import Act


@pytest.fixture(autouse=True)
def _observes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(options: RunOptions) -> int:
        raise AssertionError(f"accepted {options}")

    monkeypatch.setattr(main, "carry_out", refuse)


def failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("kcover-ebpf: ")
    assert "Traceback" not in err
    return code, err


def test_cli__without_arguments_it_shows_its_help_as_it_is_and_ends_with_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "\nCommands:\n" in err
    assert "\n  run " in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run", "nothing to watch"),
        ("run --pid 1 -- true", "only one of"),
        ("run --pid 1 --cgroup /", "only one of"),
        ("run --cgroup / -- true", "only one of"),
        ("run -- no-such-program-anywhere", "does not exist"),
        ("run -- ./no-such-program", "does not exist"),
        ("run -- /etc/passwd", "may not be executed"),
        ("run -- /", "does not exist"),
        ("run --pid 4194303", "no process 4194303"),
        ("run --pid 0", "--pid"),
        ("run --pid x", "--pid"),
        ("run --cgroup no/such/group", "no cgroup 'no/such/group'"),
        ("run --act fly -- true", "'fly' is not one of"),
        ("run --act restart --pid 1", "--act restart needs a command"),
        ("run --act shutdown --pid 1", "parent of this command"),
        ("run --max-restarts 2 -- true", "needs --act restart"),
        ("run --act restart --max-restarts -1 -- true", "--max-restarts"),
        ("run --for 5 -- true", "'5' is not a duration"),
        ("run --for 5w -- true", "'5w' is not a duration"),
        ("run --for 0s -- true", "longer time"),
        ("collectives", "name a folder"),
        ("collectives no/such/folder", "cannot read no/such/folder: No such file"),
        ("run --policy no-such-file -- true", "does not exist"),
        ("run -o yaml -- true", "'yaml' is not one of"),
        ("run --no-such-option -- true", "No such option"),
        ("trace", "name one job"),
        ("trace --pid 1 --cgroup /", "name one job"),
        ("trace --pid 4194303", "no process 4194303"),
        ("trace --cgroup no/such/group", "no cgroup"),
        ("completion tcsh", "'tcsh' is not one of"),
        ("frobnicate", "No such command 'frobnicate'"),
        ("--frobnicate", "No such option"),
    ],
)
def test_main__wrong_usage(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = failure(arguments.split(), capsys)
    assert code == 2
    assert words in err


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("typo = 1\n", "unknown key 'typo'"),
        ("grace = 5\n", "needs a unit"),
        ('grace = "5 parsecs"\n', "not a duration"),
        ("grace = \n", "not valid TOML"),
        ("max_restarts = 1.5\n", "whole number"),
    ],
)
def test_main__wrong_policy(
    policy: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(policy)
    code, err = failure(["run", "--policy", str(path), "--", "true"], capsys)
    assert code == 2
    assert words in err


def test_main__wrong_catalogue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[xid.79]\naction = 'pray'\n")
    code, err = failure(["run", "--catalog", str(path), "--", "true"], capsys)
    assert code == 2
    assert "no action 'pray'; use one of" in err


@pytest.mark.parametrize("error", [CannotObserve("no\nprivileges"), LoadError("no privileges")])
def test_main__what_cannot_be_observed(
    error: CannotObserve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: RunOptions) -> int:
        raise error

    monkeypatch.setattr(main, "carry_out", fail)
    assert failure(["run", "--", "true"], capsys) == (3, "kcover-ebpf: no privileges\n")


def test_main__a_bug_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: RunOptions) -> int:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(main, "carry_out", fail)
    code, err = failure(["run", "--", "true"], capsys)
    assert code == 70
    assert re.search(r"internal error.*ZeroDivisionError: a b at test_cli.py:\d+", err)


def test_main__a_library_of_the_system_that_is_missing_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words are those of glibc's dlopen, as a compiled module of Python reports them."""

    def fail(options: RunOptions) -> int:
        raise ImportError(
            "libstdc++.so.6: cannot open shared object file: No such file or directory"
        )

    monkeypatch.setattr(main, "carry_out", fail)
    text = "libstdc++.so.6 is missing on this system: install the package that contains it"
    assert failure(["run", "--", "true"], capsys) == (3, f"kcover-ebpf: {text}\n")


def test_main__the_plan_says_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[RunOptions] = []

    def accept(options: RunOptions) -> int:
        plans.append(options)
        return 7

    monkeypatch.setattr(main, "carry_out", accept)
    (tmp_path / "p.toml").write_text('grace = "2s"\nmax_restarts = 9\n')
    (tmp_path / "own.toml").write_text("[xid.63]\naction = 'reset_gpu'\n")
    arguments = f"run --act restart --max-restarts 1 --policy {tmp_path}/p.toml --for 2m -o json"
    arguments += f" --catalog {tmp_path}/own.toml"
    code = cli.main([*arguments.split(), "--", "sh", "-c", "exit 0", "--pid", "3"])
    assert code == 7
    (plan,) = plans
    assert plan.argv == ("sh", "-c", "exit 0", "--pid", "3")
    assert plan.settings.act is Act.RESTART
    assert plan.settings.policy.max_restarts == 1
    assert plan.settings.policy.grace_s == 2.0
    assert plan.for_s == 120.0
    assert plan.catalog == tmp_path / "own.toml"
    assert plan.json
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/usr/bin/python3", "-u", "/srv/train.py", "--lr", "1"], "train"),
        (["python3", "-m", "pkg.train"], "pkg.train"),
        (["torchrun", "train.py"], "torchrun"),
        (["sh", "-c", "sleep 1; true"], "sh"),
        (["env", "A=1", "mpirun", "-n", "2"], "mpirun"),
        (["python3"], "python3"),
    ],
)
def test_name_of__names_of_jobs(argv: list[str], name: str) -> None:
    assert name_of(tuple(argv)) == name


def test_main__help_shows_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "kcover-ebpf run --act shutdown" in capsys.readouterr().out
    for command in ("run", "trace", "doctor"):
        assert cli.main([command, "--help"]) == 0
        out = capsys.readouterr().out
        assert "Examples:" in out
        assert "Exit codes:" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_main__completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert "_KCOVER_EBPF_COMPLETE" in capsys.readouterr().out


def test_cli__help_loads_neither_the_sensor_nor_the_kernel_part() -> None:
    check = (
        "import sys; from kcover_ebpf.cli import main; main(['--help'])\n"
        "heavy = [m for m in sys.modules if m.startswith(('kcover_ebpf.', 'prometheus', 'ctypes'))"
        " and not m.startswith(('kcover_ebpf.cli', 'kcover_ebpf.errors'))]\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_cli__doctor_keeps_in_json_the_name_of_a_feature_that_people_read_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("kcover_ebpf.cli.doctor")
    monkeypatch.setattr(module, "host_features", lambda: [module.Feature("rights", True, "all")])
    monkeypatch.setattr(module, "_try_probes", lambda: ((), ()))
    assert cli.main(["doctor"]) == 0
    assert "privileges  yes    all" in capsys.readouterr().out
    assert cli.main(["doctor", "-o", "json"]) == 0
    assert '"name":"rights"' in capsys.readouterr().out
