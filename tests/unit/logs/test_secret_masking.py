"""What a program printed of its credentials is not kept; what it printed of its training is."""

from __future__ import annotations

import time

import pytest

from kcover_ebpf.logs.secret_masking import MASK, end_of, masked

SECRET = "s3cr3t-0451"
HEAD = "2026-11-28T10:00:00.5Z stderr F "
TOKENS = {
    "AKIA": "AKIA" + "Q7" * 8,
    "hf": "hf_" + "aB3" * 10,
    "github": "ghp_" + "aB3" * 12,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "openai": "sk-proj-" + "aB3_" * 8,
    "nvidia": "nvapi-" + "aB3-" * 10,
    "slack": "xoxb-1234567890-abcdef",
}
NAMED = (
    f"WANDB_API_KEY={SECRET}",
    f"export AWS_SECRET_ACCESS_KEY={SECRET}",
    f'{{"step": 3, "hf_token": "{SECRET}", "lr": 0.1}}',
    f'{{"log":"{{\\"password\\": \\"{SECRET}\\"}}\\n","stream":"stdout"}}',
    f"Namespace(lr=0.1, api_key='{SECRET}', seed=3)",
    f"{{'secretKey': '{SECRET}'}}",
    f"+ python train.py --hub-token {SECRET} --epochs 3",
    f"password: {SECRET}",
    "password: 04510451",
    f"> Authorization: Bearer {SECRET}",
    f"curl -H 'Authorization: token {SECRET}'",
    f"connecting to postgres://train:{SECRET}@db.example.com/runs",
    f"redis://:{SECRET}@cache:6379",
    f"GET https://b.s3.example.com/x?X-Amz-Expires=60&X-Amz-Signature={SECRET}&b=1",
    f"client_secret => {SECRET}",
    f"export DB_PASS={SECRET}; export SMTP_PWD='{SECRET}'",
    f"{{'MYSQL_PWD': '{SECRET}', 'RANK': '3'}}",
    f"> Cookie: session={SECRET}; path=/",
    f"send: b'GET / HTTP/1.1\\r\\nCookie: id={SECRET}\\r\\n'",
    f'{{"log":"< Set-Cookie: id={SECRET}; HttpOnly\\n","stream":"stderr"}}',
    f"+ curl -sS -u train:{SECRET} https://store.example.com/model",
    f"+ curl --user 'train:{SECRET}' -O https://store.example.com/model",
    f"\x1b[1;34mpassword\x1b[0m: \x1b[32m{SECRET}\x1b[0m",
    f"'\x1b[32mapi_key\x1b[0m'\x1b[1m=\x1b[0m'{SECRET}'",
    f'{{"log":"\\u001b[1mpassword\\u001b[0m: {SECRET}\\n","stream":"stdout"}}',
)
KEPT = (
    "step 17 loss: 2.31 tokens: 69632 tokens/s: 12.4k",
    "max_tokens=4096, num_tokens = 1.2e9, pad_token: None, use_auth_token=False",
    "tokenizer: /models/tokenizer.json",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "NCCL INFO Channel 00/04 : 0 1 2 3 [send] via NET/IB/0/GDRDMA",
    '  File "/train/secrets_loader.py", line 12, in tokens',
    "GET https://huggingface.co/api/models?token_type=bpe 404",
    "forward_pass: 12.5 ms, backward_pass=31.0 ms, PWD=/workspace",
    "accepts 3 cookies, curl -u is not used: 401",
    "s3://bucket/prefix/step-1000 at 10.0.0.5:29500",
)


@pytest.mark.parametrize("line", NAMED)
def test_masked__what_a_name_makes_a_secret_is_taken_out(line: str) -> None:
    made = masked(f"{HEAD}{line}\nnext\n")
    assert SECRET not in made
    assert "0451" not in made
    assert MASK in made
    assert made.startswith(HEAD)
    assert made.endswith("\nnext\n")


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_masked__a_token_is_known_by_its_form_alone(token: str) -> None:
    assert masked(f"loading with {token}, retry") == f"loading with {MASK}, retry"


@pytest.mark.parametrize("line", KEPT)
def test_masked__what_explains_a_fault_stays(line: str) -> None:
    assert masked(line) == line


@pytest.mark.parametrize("end", ["", f"{HEAD}-----END RSA PRIVATE KEY-----\nnext\n"])
def test_masked__a_private_key_goes_whole_also_where_its_end_is_missing(end: str) -> None:
    body = "".join(f"{HEAD}MIIEpAIBAAKCAQEA{number}\n" for number in range(3))
    made = masked(f"{HEAD}first\n{HEAD}-----BEGIN RSA PRIVATE KEY-----\n{body}{end}")
    assert "MIIE" not in made
    assert made == f"{HEAD}first\n{HEAD}{MASK}" + ("\nnext\n" if end else "")


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b[2J",
        "\x1b]0;title\x07",
        "\x1b]8;;http://x\x1b\\",
        "\x1b]52;c;eA==",
        "\x1bc",
        "\x9b2J",
        "\x1b",
        "\x08",
    ],
)
def test_masked__nothing_that_commands_a_terminal_is_kept(sequence: str) -> None:
    made = masked(f"{HEAD}step 7\tloss 2.5{sequence}\nnext\r\n")
    assert made.isascii()
    assert not any(char in made for char in "\x1b\x07\x08")
    assert made.startswith(f"{HEAD}step 7\tloss 2.5")
    assert made.endswith("\nnext\r\n")


def test_masked__is_done_twice_as_once() -> None:
    text = "\n".join((*NAMED, *TOKENS.values(), *KEPT))
    once = masked(text)
    assert masked(once) == once


def test_masked__a_hostile_text_takes_time_in_proportion_to_its_length() -> None:
    def cpu_s(text: str) -> float:
        begin_s = time.process_time()
        masked(text)
        return time.process_time() - begin_s

    for piece in (
        "token=\\\\\\\\",
        "a://",
        "-----BEGIN PRIVATE KEY-----",
        "--token ",
        "bearer ",
        "curl -u ",
        "A_PWD=",
    ):
        assert cpu_s(piece * (16_384 // len(piece))) < 2.0


@pytest.mark.parametrize(
    ("text", "end"),
    [("ab\ncd\n", "ab\ncd\n"), ("abcdef\ncd\n", "cd\n"), ("x\nabcdefgh\n", "cdefgh\n")],
    ids=["short", "whole lines", "one long line"],
)
def test_end_of__lines_stay_whole_unless_one_is_too_long(text: str, end: str) -> None:
    assert end_of(text, 7) == end
