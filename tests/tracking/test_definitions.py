"""Every recorded number has one complete definition, which loads without anything heavy."""

import subprocess
import sys
from dataclasses import fields

import pytest

from rung.tracking.definitions import METRICS, Metric

# fmt: off
RECORDED = {
    "step", "kind", "split", "reward_mean", "reward_std", "reward_errors", "groups_without_signal", "completions",
    "tokens", "length_mean", "stop_fraction", "loss", "grad_norm", "clip_fraction", "kl_policy_reference_k1",
    "kl_policy_reference_k3", "entropy", "learning_rate", "sampler_logratio_max", "sampler_logratio_p99",
    "sampler_logratio_mean", "updates", "reward_low", "reward_high", "n", "full_reward", "full_reward_low",
    "full_reward_high", "kl_policy_reference", "kl_policy_reference_low", "kl_policy_reference_high",
    "groups_drawn", "groups_dropped", "greedy_reward_mean", "greedy_errors", "greedy_tokens", "baseline",
    "backtracks", "accepted", "kl_old_policy", "kl_coefficient", "kl_capped_tokens",
    "collect", "reward", "annotate", "update", "record", "total", "tokens_per_second",
}
# fmt: on


def test_every_recorded_key_is_defined_and_nothing_else():
    assert set(METRICS) == RECORDED


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_definition_is_complete_and_each_field_is_one_line(metric: Metric):
    for field in fields(Metric):
        value = getattr(metric, field.name)
        assert value.strip() == value != ""
        assert "\n" not in value
    assert METRICS[metric.name] is metric
    assert metric.one_line == f"{metric.meaning} ({metric.unit})."


def test_labels_are_told_apart():
    labels = [metric.label for metric in METRICS.values()]
    assert len(set(labels)) == len(labels)


def test_definitions_and_report_load_no_third_party_module():
    """`rung.report` and the definitions work where only Python is installed."""
    script = (
        "import sys; before = set(sys.modules); import rung.report, rung.tracking.definitions;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'rung'}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
