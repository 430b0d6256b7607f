"""Lines that common trainers print about a step: a pattern for each kind of line. Pure.

The forms are those of Megatron-LM, DeepSpeed, torchtitan, torchtune, Lightning, Hugging Face's trainer (so TRL and
axolotl), LLaMA-Factory, NeMo, MaxText, Composer, Keras, nanoGPT, llm.c, fairseq, mmengine, timm, PaddleNLP,
Levanter, veRL and of progress bars. A pattern is RE2, for one line; each group `value...` is a number, and each
group `millis...` is one in thousandths.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class KnownLine(Enum):
    """Kind of line; its pattern is in `PATTERNS`."""

    STEP = "step"
    LOSS = "loss"
    GRAD_NORM = "gradNorm"
    TFLOPS = "tflops"
    TOKENS_PER_SECOND = "tokensPerSecond"
    STEP_SECONDS = "stepSeconds"
    CHECKPOINT = "checkpoint"


_DIGITS = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_NUMBER = rf"(?P<value>{_DIGITS})"
_SEPARATED = r"""["']?[ \t]{0,4}[:=][ \t]{0,4}["']?"""
_OR_BLANK = r"""["']?[\t ]{0,8}[:=#]?[\t ]{0,12}["']?\[?[\t ]{0,8}"""
_WHOLE = r"(?:\.0+\b|[^.\d]|$)"
"""Pattern of what ends a whole number."""
IN_EPOCH = "value_in_epoch"
"""Prefix of the names of groups that count from the start of an epoch."""
STEP_IN_EPOCH = (
    rf"poch[^\n\r]{{0,80}}\b(?P<{IN_EPOCH}>\d{{1,15}})/\d{{1,15}} \["
    rf"|Epoch\(train\)[\t ]{{1,4}}\[\d{{1,9}}\]\[[\t ]{{0,8}}(?P<{IN_EPOCH}_mmengine>\d{{1,15}})/\d{{1,15}}\]"
    rf"|\bTrain: \d{{1,9}} \[[\t ]{{0,8}}(?P<{IN_EPOCH}_timm>\d{{1,15}})/\d{{1,15}}"
)
"""Pattern of a step counted from the start of its epoch."""
STEP = (
    r"\b(?:(?:global|train|training|current)[ _-]?)?(?:steps?|iteration|iter|batch)"
    rf"{_OR_BLANK}(?P<value>\d{{1,15}}){_WHOLE}"
    r"|\btime/batch: (?P<value_composer>\d{1,15})"
    rf"|\bnum_updates{_SEPARATED}(?P<value_fairseq>\d{{1,15}})"
    r"|\bProgress on:train (?P<value_levanter>\d{1,15})it/"
    r"|\b(?P<value_bar>\d{1,15})/\d{1,15} (?:\[|[^\x00-\x7f])"
)
"""Pattern of a step counted from the start of the training."""
_LOSS = (
    r"\b(?:train_|lm |lm_|train/|global_avg_|reduced_train_|gpt_|language_model_|actor/pg_)?"
    r"loss(?:_step|/total|/train/total)?\b"
)
PATTERNS: Mapping[KnownLine, str] = {
    KnownLine.STEP: rf"(?im){STEP_IN_EPOCH}|{STEP}",
    KnownLine.LOSS: rf"(?i){_LOSS}(?:{_SEPARATED}{_NUMBER}|[\t ](?P<value_bare>\d{{1,9}}\.\d{{1,9}})\b)",
    KnownLine.GRAD_NORM: rf"(?i)\b(?:grad[_ ]?norm|gnorm)\b{_SEPARATED}{_NUMBER}",
    KnownLine.TFLOPS: rf"(?i)\bt(?:era)?flop/?s?\b[^:=\n]{{0,20}}{_SEPARATED}{_NUMBER}",
    KnownLine.TOKENS_PER_SECOND: (
        r"(?i)\b(?:(?:interval_)?tok(?:en)?s?[_/ ](?:per[_ ])?s(?:ec(?:ond)?)?(?:(?:/|_per_)(?:gpu|device))?"
        r"|tps|tgs|wps)\b"
        rf"{_SEPARATED}{_NUMBER}|(?P<value_before>{_DIGITS}) tok(?:en)?s?/s\b"
    ),
    KnownLine.STEP_SECONDS: (
        r"(?i)(?:\b(?:step[_ ]time(?: \(s\))?|time[_ /]per[_ ](?:step|iteration)(?: \(s\))?"
        rf"|train_step_timing in s|timing_s/step|s/it)\b{_SEPARATED}{_NUMBER}"
        rf"|\btime[_ ]per[_ ](?:step|iteration) \(ms\)[\t ]{{0,4}}[:=][\t ]{{0,4}}(?P<millis>{_DIGITS})"
        r"|\btime (?P<millis_nano>\d{1,9}\.\d{1,4})ms\b|\b(?P<value_bar>\d{1,6}\.\d{1,3})s/it\b"
        rf"|\bcompleted step: \d{{1,15}}, seconds: (?P<value_maxtext>{_DIGITS}))"
    ),
    KnownLine.CHECKPOINT: (
        r"(?i)\b(?:successfully )?saved? (?:a |the |model )?checkpoint"
        r"|checkpoint\b[^\n]{0,120}\b(?:saved|written|complete)|kcover: checkpoint \d+ is complete"
    ),
}
TOKENS = (
    r"(?i)\b(?:consumed|seen|total|num|cumulative|num_input)[ _](?:train[ _])?tokens?(?:[ _]seen)?\b"
    rf"{_SEPARATED}(?P<value>\d{{1,3}}(?:,\d{{3}})+|\d{{1,18}})\b"
)
"""Pattern of the number of tokens that the training has processed."""
