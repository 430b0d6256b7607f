"""The policy file: whatever it holds, the answer is a policy or one `PolicyError`."""

import math
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kcover_ebpf.errors import KcoverError, PolicyError
from kcover_ebpf.settings import Policy, parse_duration, read_table

KEYS = [field.name.removesuffix("_per_h").removesuffix("_s") for field in fields(Policy)]
VALUES = st.one_of(
    st.floats().map(str),
    st.integers().map(str),
    st.booleans().map(lambda flag: str(flag).lower()),
    st.sampled_from(['"3s"', '"0ms"', '"never"', '"3"', '"-1s"', "[]", "{}", "1979-05-27", '""']),
    st.text().map(lambda text: '"' + text.replace("\\", "").replace('"', "") + '"'),
)
LINES = st.builds("{} = {}".format, st.one_of(st.sampled_from(KEYS), st.text(max_size=9)), VALUES)
REUSE = hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def policy_of(folder: Path, text: str | bytes) -> Policy:
    path = folder / "policy.toml"
    path.write_bytes(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    return Policy.from_file(path)


def assert_sound(policy: Policy) -> None:
    for field in fields(policy):
        value = getattr(policy, field.name)
        if field.name == "hard_limit_s" and value is None:
            continue
        assert isinstance(value, int | float), field.name
        assert math.isfinite(value), field.name
        assert value >= 0, field.name
    assert isinstance(policy.max_restarts, int)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("3s", 3),
        ("2m", 120),
        ("1h", 3600),
        ("7d", 604800),
        ("1.5s", 1.5),
        (" 2m ", 120),
    ],
)
def test_parse_duration__a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "s",
        "-1s",
        "+1s",
        "1e3s",
        ".5s",
        "1.s",
        "3 s",
        "3S",
        "1m30s",
        "2w",
        "inf",
        "nans",
        "9e9h",
    ],
)
def test_parse_duration__what_is_no_duration_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ValueError, match="like 30s"):
        parse_duration(text)


@given(st.one_of(st.text(), st.from_regex(r"\d+(\.\d+)?(ms|s|m|h|d)", fullmatch=True)))
@example("9" * 400 + "h")
def test_parse_duration__any_text_is_a_finite_duration_or_a_value_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0


def test_policy__a_policy_keeps_the_defaults_it_does_not_name(tmp_path: Path) -> None:
    text = 'stall_floor = "500ms"\nstall_factor = 2\nmax_restarts = 0\nhard_limit = "1h"'
    assert policy_of(tmp_path, text) == Policy(
        stall_floor_s=0.5, stall_factor=2.0, max_restarts=0, hard_limit_s=3600
    )
    assert policy_of(tmp_path, "") == Policy()
    assert policy_of(tmp_path, 'hard_limit = "never"').hard_limit_s is None


def test_policy__every_default_can_be_written_in_a_file(tmp_path: Path) -> None:
    plain = {"stall_factor": "1.5", "max_restarts": "3", "hard_limit": '"never"'}
    plain |= {"false_restarts": '"1 per 1000h"'}
    lines = [
        f"{key} = {plain[key]}" if key in plain else f'{key} = "{getattr(Policy(), key + "_s")}s"'
        for key in KEYS
    ]
    assert policy_of(tmp_path, "\n".join(lines)) == Policy()


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('stal_floor = "1s"', "unknown key 'stal_floor'; known: .*stall_floor"),
        ("stall_floor = 3", 'stall_floor needs a unit, for example stall_floor = "3s"'),
        ('stall_floor = "3"', "not a duration"),
        ('stall_floor = "never"', "not a duration"),
        ('stall_factor = "2"', "a number from 0 to"),
        ("stall_factor = -1", "a number from 0 to"),
        ("stall_factor = nan", "a number from 0 to"),
        ("stall_factor = inf", "a number from 0 to"),
        ("stall_factor = true", "a number from 0 to"),
        ("max_restarts = 1.5", "a whole number"),
        ("max_restarts = -1", "a number from 0 to"),
        ("= 1", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
    ],
)
def test_policy__a_wrong_policy_says_what_to_write(
    tmp_path: Path, text: str | bytes, hint: str
) -> None:
    with pytest.raises(PolicyError, match=hint) as raised:
        policy_of(tmp_path, text)
    assert "\n" not in str(raised.value)


def test_policy__a_policy_that_cannot_be_read_is_a_policy_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PolicyError, match="cannot read policy"):
            Policy.from_file(path)


@REUSE
@given(st.one_of(st.lists(LINES, max_size=4).map("\n".join), st.text(), st.binary()))
@example("stall_factor = 1" + "0" * 400)
@example("max_restarts = " + "9" * 5000)
@example(f'backoff = "{"9" * 400}h"')
@example("a = " + "[" * 3000)
@example("stall_factor = nan")
def test_policy__any_file_is_a_sound_policy_or_a_policy_error(
    tmp_path: Path, text: str | bytes
) -> None:
    try:
        policy = policy_of(tmp_path, text)
    except PolicyError:
        return
    assert_sound(policy)


def _tree(error: type[KcoverError]) -> list[type[KcoverError]]:
    return [error, *(below for child in error.__subclasses__() for below in _tree(child))]


def test_settings__the_exit_codes_of_all_errors() -> None:
    codes = {error.__name__: error.exit_code for error in _tree(KcoverError)}
    assert codes == {
        "KcoverError": 1,
        "UsageError": 2,
        "PolicyError": 2,
        "CannotObserve": 3,
        "LoadError": 3,
        "DecodeError": 1,
        "ObjectError": 1,
        "OverBound": 1,
        "ApiError": 1,
        "Conflict": 1,
        "Forbidden": 3,
        "NotFound": 1,
        "Gone": 1,
        "TooLarge": 1,
        "Unreachable": 3,
        "ActionError": 1,
        "NotSent": 1,
        "StoreError": 1,
        "ReaderError": 1,
    }


def written(folder: Path, content: bytes) -> Path:
    path = folder / "table"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("content", [b'a = 1\nb = "x"\n', b' {"a": 1, "b": "x"}'])
def test_read_table__the_form_shows_in_the_file(tmp_path: Path, content: bytes) -> None:
    assert read_table(written(tmp_path, content), "policy") == {"a": 1, "b": "x"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a = ", "the file is not valid TOML"),
        (b"[1, 2]", "the file is not valid TOML"),
        (b'{"a": ', "the file is not valid JSON"),
        (b"a = \xff", "the file is not valid TOML"),
        (b"a = " + b"[" * 5000, "the file is not valid TOML"),
        (b"a" * (1 << 20) + b"b", "the file is larger than 1 MiB"),
    ],
)
def test_read_table__a_bad_file_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(PolicyError) as raised:
        read_table(path, "job rules")
    assert str(raised.value).startswith(f"job rules {path}: {says}")
    assert "\n" not in str(raised.value)


def test_read_table__a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"cannot read policy .*/none: No such file"):
        read_table(tmp_path / "none", "policy")
