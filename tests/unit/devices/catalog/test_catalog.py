"""The catalogue of Xids and SXids: every row is whole, and says what the sources say."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from kcover_ebpf.cli.xid import xid
from kcover_ebpf.devices.catalog import FIRST_SXID, Action, Domain, Survival, judge
from kcover_ebpf.devices.catalog.files import load, shipped
from kcover_ebpf.devices.catalog.nvlink5 import Origin, fault
from kcover_ebpf.errors import PolicyError, UsageError

CATALOG = shipped()
ALL = [entry for variants in CATALOG.entries.values() for entry in variants]
SXIDS = {number for number in CATALOG.entries if number >= FIRST_SXID}
# src/common/nvswitch: the last number of each unit in the driver's list
LAST_SXIDS = (
    10010, 11047, 12051, 13008, 14018, 15020, 16003, 17008, 18020, 19084, 20038,
    21010, 22013, 23017, 24007, 25010, 26008, 27007, 28005, 29006, 30006,
)  # fmt: skip


def test_catalog__every_xid_up_to_the_drivers_last_number_is_there():
    assert set(range(1, 177)) | {185} == {n for n in CATALOG.entries if n < FIRST_SXID}


def test_catalog__every_sxid_of_the_drivers_list_is_there():
    assert {n for last in LAST_SXIDS for n in range(last // 1000 * 1000 + 1, last + 1)} == SXIDS


def test_catalog__every_entry_is_whole():
    torn = [
        entry.name
        for entry in ALL
        if not (entry.meaning and entry.advice and entry.source and all(entry.source))
        or not re.fullmatch(r"[A-Z0-9_]+", entry.mnemonic)
        or "|" in entry.meaning + entry.advice
    ]
    assert torn == []


def test_catalog__mnemonics_are_unique_within_one_driver_version():
    newest = [variants[-1].mnemonic for variants in CATALOG.entries.values()]
    assert len(newest) == len(set(newest))


def test_catalog__every_class_and_every_disagreement_of_the_data_names_known_numbers():
    path = Path("kcover_ebpf/devices/catalog/sxid.toml")
    table = tomllib.loads((Path(__file__).parents[4] / path).read_text())
    for group in table["class"]:
        assert set(group["numbers"]) <= SXIDS, group["name"]
    assert {int(key) for key in table["disagreement"]} <= SXIDS


@pytest.mark.parametrize(
    ("number", "driver", "mnemonic"),
    [
        (139, None, "ROBUST_CHANNEL_OFA1_ERROR"),
        (139, "535.154.05", "FAST_PATH_ERROR"),
        (139, "570.86.15", "ROBUST_CHANNEL_OFA1_ERROR"),
        (144, "550.54.14", "ROBUST_CHANNEL_KEY_ROTATION_ERROR"),
        (144, "550.90.07", "ROBUST_CHANNEL_KEY_ROTATION_ERROR"),
        (144, "575.51.02", "NVLINK_SAW_ERROR"),
        (79, "470.256.02", "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS"),
    ],
)
def test_catalog__numbers_that_changed_their_meaning(number, driver, mnemonic):
    entry = CATALOG.find(number, driver)
    assert entry is not None
    assert entry.mnemonic == mnemonic


@pytest.mark.parametrize(
    ("number", "domain", "action", "survival"),
    [
        (13, Domain.APPLICATION, Action.RESTART_APP, Survival.NO),
        (31, Domain.APPLICATION, Action.RESTART_APP, Survival.NO),
        (48, Domain.HARDWARE, Action.RESET_GPU, Survival.NO),
        (63, Domain.HARDWARE, Action.RESET_WHEN_IDLE, Survival.YES),
        (74, Domain.FABRIC, Action.RESET_GPU, Survival.DEPENDS),
        (79, Domain.HARDWARE, Action.REBOOT_NODE, Survival.NO),
        (94, Domain.HARDWARE, Action.RESTART_APP, Survival.NO),
        (119, Domain.DRIVER, Action.RESET_GPU, Survival.NO),
        (12020, Domain.FABRIC, Action.RESET_FABRIC, Survival.NO),
        (20034, Domain.FABRIC, Action.RESET_GPU, Survival.NO),
        (11012, Domain.FABRIC, Action.NONE, Survival.YES),
        (12028, Domain.DRIVER, Action.CHECK_FABRIC_MANAGER, Survival.DEPENDS),
    ],
)
def test_catalog__what_the_specification_says(number, domain, action, survival):
    entry = CATALOG.find(number)
    assert entry is not None
    assert (entry.domain, entry.action, entry.survival) == (domain, action, survival)


@pytest.mark.parametrize(
    "number",
    [13, 31, 32, 38, 44, 45, 61, 63, 64, 68, 69, 94, 109, 121, 123, 143, 151, 154, 160, 162],
)
def test_catalog__disagreements_are_kept(number):
    entry = CATALOG.find(number)
    assert entry is not None
    assert entry.disagreement


@pytest.mark.parametrize(
    ("number", "text", "ends_job", "unfit"),
    [
        (79, "GPU has fallen off the bus.", True, True),
        (31, "MMU Fault", False, False),
        (45, "Ch 00000008 caused by previous Xid 31", False, False),
        (63, "Row Remapper", False, False),
        (94, "Contained: CE User Channel (0x9). RST: No, D-RST: No", True, False),
        (94, "Contained: SM (0x1). RST: Yes, D-RST: No", True, True),
        (95, "Uncontained: LTC TAG (0x2). RST: No, D-RST: Yes", True, True),
        (154, "{R}0x0 (None) to 0x0 (None)", False, False),
        (154, "{R}0x0 (None) to 0x1 (GPU Reset Required)", True, True),
        (154, "{R}0x0 (None) to 0x2 (Node Reboot Required)", True, True),
        (154, "{R}0x0 (None) to 0x3 (Drain P2P)", False, False),
        (154, "{R}0x1 (GPU Reset Required) to 0x4 (Drain and Reset)", False, False),
        (154, "{R}0x0 (None) to 0x5 (Recover IMEX Domain)", False, False),
        (154, "{R}0x0 (None) to 0x63 (?)", False, False),
        (154, "{R}0x0 (None) to 0x1 (PF FLR)", True, True),
        (154, "{R}0x0 (None) to 0x2 (OS Reboot)", True, True),
        (154, "{R}0x0 (None) to 0x7 (Bus Reset)", True, True),
        (154, "words the driver never said", False, False),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x0 0x0)", True, True),
        (149, "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", False, False),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0)", True, True),
        (150, "MSE_WDT Fatal XC0 i1 Link 03 (0x1)", False, False),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 03 (0x1 0x2)", False, False),
        (145, "RLW_REMAP  Fatal XC1 i0 Link 03 (0x1 0x40)", True, True),
        (12028, "Non-fatal, Link 32 egress non-posted PRIV error (First)", False, False),
        (12028, "Fatal, Link 32 egress non-posted PRIV error", True, True),
        (20034, "Fatal, Link 30 LTSSM Fault Up", True, True),
        (20034, "Non-fatal, Link 30 LTSSM Fault Up", False, False),
    ],
)  # fmt: skip
def test_judge__the_message_outranks_the_table(number, text, ends_job, unfit):
    entry = CATALOG.find(number)
    assert entry is not None
    judgement = judge(entry, text.replace("{R}", "GPU recovery action changed from "))
    assert (judgement.ends_job, judgement.device_unfit) == (ends_job, unfit)
    assert judgement.reason


@pytest.mark.parametrize(
    ("info", "origin"),
    [
        ("0x02a001c6", Origin.SIGNAL),
        ("0x025001c6", Origin.PEER),
        ("0x026001c6", Origin.SOFTWARE),
        ("0x028001c6", Origin.HOST),
        ("0x000001c6", Origin.UNKNOWN),
    ],
)
def test_nvlink5__the_sub_code_says_whose_part_it_is(info, origin):
    found = fault(f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 ({info} 0x00000000 0x00000000)")
    assert found is not None
    assert (found.link, found.is_fatal, found.origin) == (9, True, origin)
    entry = CATALOG.find(149)
    assert entry is not None
    judgement = judge(entry, f"NETIR_LINK_EVT Fatal XC0 i0 Link 09 ({info} 0x0)")
    assert origin.value in judgement.reason


def test_load__operator_overrides(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        '[xid.13]\naction = "contact_support"\n[sxid.12028]\nsurvival = "no"\n'
        '[xid.900]\nmnemonic = "OURS"\nmeaning = "ours"\ndomain = "driver"\n'
        'action = "none"\nsurvival = "yes"\n'
    )
    catalog = load(own)
    thirteen, switch, ours = catalog.find(13), catalog.find(12028), catalog.find(900)
    assert thirteen is not None
    assert switch is not None
    assert ours is not None
    assert thirteen.action is Action.CONTACT_SUPPORT
    assert not thirteen.advice
    assert switch.advice
    assert thirteen.source[-1] == "operator"
    assert switch.survival is Survival.NO
    assert ours.mnemonic == "OURS"
    assert shipped().find(900) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[xid.13]\nactoin = 'none'", "no field 'actoin'"),
        ("[xid.13]\naction = 'explode'", "no action 'explode'; use one of none, restart_app, "),
        ("[xid.13]\ndomain = 3", "no domain 3; use one of application, driver, hardware, fabric"),
        ("[xid.13]\nmeaning = 3", "3 is no text"),
        ("[xid.900]\naction = 'none'", "also needs mnemonic, meaning, domain, survival"),
        ("[xid.12028]\naction = 'none'", "no xid number"),
        ("[sxid.79]\naction = 'none'", "no sxid number"),
        ("[xid.abc]\naction = 'none'", "no xid number"),
        ("[zid.1]\naction = 'none'", "[zid] is unknown"),
        ("xid = 3", "[xid] is unknown"),
        ("[xid]\n13 = 3", "must be a table"),
        ("nonsense", "not valid TOML"),
        ("x = " + "9" * 5000, "not valid TOML"),
        ("x = " + "[" * 5000, "not valid TOML"),
        ("[xid.99999999999]\naction = 'none'", "no xid number"),
    ],
    ids=lambda text: text[:30],
)
def test_load__a_bad_override_is_refused(tmp_path, text, complaint):
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(PolicyError) as caught:
        load(own)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_catalog__command_text():
    result = CliRunner().invoke(xid, ["79"])
    assert result.exit_code == 0
    assert result.output.startswith("Xid 79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS\n")
    assert "reboot_node" in result.output
    assert "job continues no" in result.output


def test_catalog__command_json_and_other_meanings():
    result = CliRunner().invoke(xid, ["144", "--driver", "550.90.07", "-o", "json"])
    said = json.loads(result.output)
    assert said["mnemonic"] == "ROBUST_CHANNEL_KEY_ROTATION_ERROR"
    assert said["other_meanings"][0]["mnemonic"] == "NVLINK_SAW_ERROR"
    assert said["schema"] == "kcover.io/v1alpha1"


def test_catalog__command_with_an_operators_file(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[xid.79]\naction = "contact_support"\n')
    result = CliRunner().invoke(xid, ["79", "--catalog", str(own)])
    assert "\n  do            contact_support\n" in result.output
    assert result.output.endswith("; operator\n")


@pytest.mark.parametrize("number", ["0", "184", "9999", "31000"])
def test_catalog__command_unknown_number(number):
    result = CliRunner().invoke(xid, [number])
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2


@pytest.mark.parametrize(
    "arguments", [["abc"], ["-1"], [], ["79", "-o", "yaml"], ["79", "--catalog", "/"]]
)
def test_catalog__command_bad_usage(arguments):
    result = CliRunner().invoke(xid, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_catalog__command_bad_driver_version():
    result = CliRunner().invoke(xid, ["79", "--driver", "newest"])
    assert isinstance(result.exception, UsageError)
    assert "570.86.15" in str(result.exception)
