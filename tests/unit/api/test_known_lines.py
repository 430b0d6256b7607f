"""The lines of usual trainers about a step, each with the numbers that it shows, and lines that are none."""

from __future__ import annotations

import pytest

from kcover_ebpf.api.job_rules import JobRule, compiled, number_groups, number_of
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.logs.normal import normal

TRAINERS = {
    "Megatron-LM": (
        (" iteration 1200/ 10000 | consumed samples: 307200 | elapsed time per iteration (ms): 5803.2 | throughput per "
        "GPU (TFLOP/s/GPU): 412.1 | lm loss: 2.31E+00 | loss scale: 1.0 | grad norm: 0.312 |"),
        {"step": 1200, "loss": 2.31, "gradNorm": 0.312, "tflops": 412.1, "stepSeconds": 5.8032},
    ),
    "torchtitan": (
        ("[titan] - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.9921  grad_norm: 1.2  \x1b[33mmemory: 42.1GiB  "
        "\x1b[34mtps: 4,521  \x1b[36mtflops: 180.3"),
        {"step": 10, "loss": 7.9921, "gradNorm": 1.2, "tflops": 180.3, "tokensPerSecond": 4521},
    ),
    "Hugging Face": (
        "{'loss': 0.4321, 'grad_norm': 1.25, 'learning_rate': 1e-05, 'epoch': 0.3}",
        {"loss": 0.4321, "gradNorm": 1.25},
    ),
    "Hugging Face's bar": (
        "  2%|2         | 23/1000 [00:41<29:26,  1.81s/it]", {"step": 23, "stepSeconds": 1.81},
    ),
    "axolotl": (
        "{'loss': '0.9331', 'grad_norm': '0.5', 'epoch': '0.04', 'tokens_per_second_per_gpu': 4321.5}",
        {"loss": 0.9331, "gradNorm": 0.5, "tokensPerSecond": 4321.5},
    ),
    "LLaMA-Factory": (
        '{"current_steps": 10, "total_steps": 300, "loss": 1.1042, "lr": 5e-05, "elapsed_time": "0:00:30"}',
        {"step": 10, "loss": 1.1042},
    ),
    "Lightning": (
        "Epoch 3:  42%|####      | 42/100 [00:42<00:58, 1.0it/s, v_num=0, train_loss_step=0.31, train_loss_epoch=0.4]",
        {"step": 42, "loss": 0.31},
    ),
    "NeMo": (
        ("Training epoch 0, iteration 22/999 | lr: 2.4e-06 | global_step: 22 | reduced_train_loss: 9.87 | "
        "train_step_timing in s: 1.56 | consumed_samples: 2944"),
        {"step": 22, "loss": 9.87, "stepSeconds": 1.56},
    ),
    "DeepSpeed": (
        "step=10, skipped=0, lr=[1e-05], loss: 2.5, step_time: 0.81",
        {"step": 10, "loss": 2.5, "stepSeconds": 0.81},
    ),
    "torchtune": (
        "Step 120 | loss:1.2043 lr:2e-05 tokens_per_second_per_gpu:1830.2 grad_norm:0.8",
        {"step": 120, "loss": 1.2043, "gradNorm": 0.8, "tokensPerSecond": 1830.2},
    ),
    "MaxText": (
        "completed step: 12, seconds: 1.203, TFLOP/s/device: 187.4, Tokens/s/device: 6810.1, loss: 9.871",
        {"step": 12, "loss": 9.871, "tflops": 187.4, "tokensPerSecond": 6810.1, "stepSeconds": 1.203},
    ),
    "nanoGPT": (
        "iter 120: loss 3.2104, time 203.11ms, mfu 38.20%", {"step": 120, "loss": 3.2104, "stepSeconds": 0.20311},
    ),
    "llm.c": (
        "step    5/19560 | loss 10.9876 (+nanz)| norm 15.3 (+nanz)| 432.1 ms | 121331 tok/s",
        {"step": 5, "loss": 10.9876, "tokensPerSecond": 121331},
    ),
    "Composer": ("\t Train time/batch: 119", {"step": 119}),
    "Keras": (" 23/1000 \u2501\u2501 5:12 320ms/step - loss: 2.3026", {"step": 23, "loss": 2.3026}),
    "veRL": (
        "step:12 - actor/pg_loss:0.012 - timing_s/step:42.1", {"step": 12, "loss": 0.012, "stepSeconds": 42.1},
    ),
    "fairseq": (
        "train_inner | epoch 001:    120 / 5000 loss=9.91, ppl=962.1, wps=41231, num_updates=100, gnorm=1.3",
        {"step": 100, "loss": 9.91, "gradNorm": 1.3, "tokensPerSecond": 41231},
    ),
    "mmengine": (
        "mmengine - INFO - Epoch(train)  [1][ 50/391]  lr: 1.0e-02  time: 0.31  loss: 2.3012",
        {"step": 50, "loss": 2.3012},
    ),
    "timm": ("Train: 0 [  50/1251 (  4%)]  Loss: 6.93 (6.94)  Time: 0.41s", {"step": 50, "loss": 6.93}),
    "PaddleNLP": (
        "loss: 10.42, learning_rate: 3e-05, global_step: 10, interval_tokens_per_second_per_device: 5123.1",
        {"step": 10, "loss": 10.42, "tokensPerSecond": 5123.1},
    ),
    "Levanter": (
        "Progress on:train 120it/10.0kit rate:1.2it/s elapsed:01:40 postfix:loss=4.321", {"step": 120, "loss": 4.321},
    ),
    "OpenRLHF": (
        "Train epoch [1/1]:   2%|2         | 23/1000 [00:41<29:26,  1.81s/it, gpt_loss=1.2]",
        {"step": 23, "loss": 1.2, "stepSeconds": 1.81},
    ),
    "a dictionary": (
        '{"step": 12, "loss": 0.31, "tokens_per_sec": 1200}',
        {"step": 12, "loss": 0.31, "tokensPerSecond": 1200},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "numbers"), TRAINERS.values(), ids=TRAINERS)
def test_known_line__of_usual_trainers(line: str, numbers: dict[str, float]) -> None:
    block = normal(line.encode() + b"\n")
    found = {}
    for known_line in KnownLine:
        expression = JobRule("x", known_line).expression
        groups = number_groups(expression)
        if (match := compiled(expression).search(block)) is not None:
            found[known_line.value] = number_of(match, groups)
    assert found == {name: pytest.approx(value) for name, value in numbers.items()}


HARMLESS = [
    "validation loss will be computed later",
    "{'eval_loss': 2.1, 'eval_runtime': 3.0}",
    "connection loss after 5 s",
    "using 8 tokens per word",
    "loss 5 nodes of 8",
    "stepping down as leader",
    "max_steps is not set",
    "Downloading shards 3 of 5",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_known_line__what_is_none(line: str) -> None:
    found = [
        known_line
        for known_line in KnownLine
        if compiled(JobRule("x", known_line).expression).search(line.encode())
    ]
    assert found == []
