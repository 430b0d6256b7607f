"""The prior of patience follows from measured phases."""

from __future__ import annotations

import random

import pytest

from bench.lifebench.prior import fitted, kept
from kcover_ebpf.model.silence_summary import SilenceSummary
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.certainty import PRIOR_RATE_PER_H, PRIOR_SHAPE


def test_fitted__a_tail_is_found_again() -> None:
    draw = random.Random(1)
    lengths = [5.0 * draw.random() ** (-1 / 2.0) for _ in range(4000)]
    prior = fitted(lengths, per_hour=1.0)
    assert prior.shape == pytest.approx(2.0, abs=3 * prior.shape_error)
    assert prior.rate_per_h * (2 * prior.above_s) ** -prior.shape == pytest.approx(0.25, rel=0.1)


def test_fitted__few_phases_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        fitted([1.0] * 12)


def test_prior__what_is_shipped_is_what_was_measured() -> None:
    prior = fitted(list(kept().values()))
    assert pytest.approx(prior.shape, abs=0.01) == PRIOR_SHAPE
    assert pytest.approx(prior.rate_per_h, rel=0.02) == PRIOR_RATE_PER_H


def test_prior__a_job_of_which_nothing_is_known_is_given_all_the_time_that_there_is() -> None:
    policy = Policy()
    assert SilenceSummary().patience(policy).seconds == policy.act_cap_s
    known = SilenceSummary(observed_s=24 * 3600.0)
    assert policy.act_floor_s < known.patience(policy).seconds < policy.act_cap_s
