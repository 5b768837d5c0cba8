"""Where each public mistake about a divergence, credit, aggregation or ratio has its test, and each false alarm.

Ids are those of the sheet of public reports; the letters: A divergences, B credit, D aggregation, E ratios and
log-probabilities, N what is right and must not be "fixed". A test that moves has to move here as well.
"""

import pytest

from tests.node_ids import exists, names_of_tests

CREDIT, KL, LOSSES = "tests/credit/test_gae.py", "tests/kl/test_estimators.py", "tests/test_policy_losses.py"
MASKED, WEIGHTS, GROUPS = "tests/test_masked.py", "tests/test_aggregation.py", "tests/credit/test_groups.py"
CASES, SLOTS, LAYOUT = (
    "tests/methods/test_cases.py",
    "tests/methods/test_slots.py",
    "tests/invariance/test_layout.py",
)
PROCESSES, LOOP, LEARNER = (
    "tests/test_processes.py",
    "tests/training/test_loop.py",
    "tests/training/test_learner.py",
)

INDEX = {
    "A1": [  # the KL term with a minus sign
        f"{CASES}::test_case_A1_the_penalty_brings_the_policy_nearer_to_the_reference",
        f"{KL}::test_case_A1_a_step_down_the_kl_loss_brings_the_policy_nearer",
    ],
    "A4": [  # KL averaged over tokens that the policy did not sample
        f"{CASES}::test_case_A4_no_kl_of_a_tools_output_in_reward_or_loss",
        f"{MASKED}::test_case_A4_the_mean_kl_is_over_the_tokens_of_the_policy",
        f"{LAYOUT}::test_case_A4_a_tools_tokens_are_as_if_they_were_not_there",
    ],
    "A5": [  # k3 of an absurd log-ratio
        f"{KL}::test_case_A5_an_absurd_log_ratio_poisons_neither_value_nor_gradient",
        f"{LOSSES}::test_case_A5_an_absurd_token_has_a_finite_loss_and_gradient",
    ],
    "A8": [f"{KL}::test_case_A8_each_estimator_has_its_own_mean"],  # another estimator logged than trained on
    "A9": [  # KL or entropy without a gradient
        f"{KL}::test_case_A9_no_estimator_detaches_the_policy",
        f"{KL}::test_case_A9_the_divergence_carries_a_gradient",
        f"{SLOTS}::test_a_kl_in_the_loss_is_added_with_the_same_weights",
        "tests/methods/test_catalogue.py::test_the_entropy_bonus_is_subtracted_with_the_weights_of_the_loss",
    ],
    "A10": [  # a reference that is not where training starts
        f"{LOOP}::test_case_A10_the_divergence_from_the_reference_begins_at_zero_and_the_reference_stays",
        f"{LOOP}::test_case_A10_without_learning_nothing_drifts",
    ],
    "B1": [  # groups by position
        f"{GROUPS}::test_case_B1_groups_by_id_not_by_position",
        f"{LAYOUT}::test_case_B1_the_order_of_rows_changes_nothing",
        f"{LAYOUT}::test_case_B1_the_ids_of_groups_are_only_names",
    ],
    "B3": [  # groups of one, of equals, equal up to rounding; one token to whiten
        f"{GROUPS}::test_case_B3_groups_without_a_comparison_get_zero",
        f"{GROUPS}::test_case_B3_rounding_is_measured_against_the_mean",
        f"{MASKED}::test_case_B3_whitening_one_token_gives_zero",
    ],
    "B4": [f"{MASKED}::test_case_B4_mean_and_variance_are_over_the_same_tokens"],
    "B5": [f"{PROCESSES}::test_case_B5_whitening_over_processes_is_that_of_one"],
    "B6": [f"{MASKED}::test_case_B6_without_shift_is_centre_scale_restore"],
    "B8": [f"{CREDIT}::test_case_B8_the_value_on_a_padded_slot_is_nobodys_next_value"],
    "B9": [
        f"{CREDIT}::test_case_B9_the_advantage_is_the_return_to_go_minus_the_value",
        "tests/credit/test_returns.py::test_case_B9_returns_add_later_rewards_and_nothing_from_padding",
    ],
    "B12": [  # a row without a trainable token
        f"{CASES}::test_case_B12_a_row_without_a_token_changes_no_loss",
        f"{CASES}::test_case_B12_the_numbers_of_the_sheet",
        "tests/test_batch.py::test_case_B12_a_row_without_a_sampled_token_has_no_reward_anywhere",
    ],
    "D1": [  # a mean of micro-batch means
        f"{LAYOUT}::test_case_D1_no_split_into_micro_batches_changes_the_gradient",
        f"{WEIGHTS}::test_case_D1_no_split_or_order_changes_the_token_mean",
        "tests/training/test_micro_batches.py::test_case_D1_token_means_are_over_the_step_and_not_over_micro_batches",
    ],
    "D2": [  # a mean of rank means
        f"{PROCESSES}::test_case_D2_losses_of_processes_add_up_to_the_token_mean",
        f"{PROCESSES}::test_case_D2_gradients_of_processes_add_up_to_those_of_one",
        f"{LAYOUT}::test_case_D2_ranks_that_know_the_totals_add_up",
    ],
    "D5": [f"{WEIGHTS}::test_case_D5_a_row_without_a_token_enters_no_denominator"],
    "D7": [
        f"{WEIGHTS}::test_case_D7_each_aggregation_has_its_own_value_at_ratio_one",
        f"{LOSSES}::test_case_D7_at_ratio_one_every_aggregation_has_a_gradient",
    ],
    "E1": [f"{LOSSES}::test_case_E1_sampler_and_trainer_share_the_temperature"],
    "E3": [f"{LEARNER}::test_case_E3_the_ratio_is_one_in_all_epochs_while_nothing_is_learned"],
    "E4": ["tests/test_critic.py::test_case_E4_the_old_value_is_that_of_the_rollout"],
    "E6": [
        f"{LOSSES}::test_case_E6_the_old_logprobs_stay_where_the_update_began",
        f"{SLOTS}::test_case_E6_old_logprobs_are_frozen_over_several_updates",
        f"{LEARNER}::test_case_E6_old_log_probabilities_stay_frozen_over_epochs",
    ],
    "E7": [f"{LOSSES}::test_case_E7_tokens_are_paired_with_themselves"],
    "E8": [f"{LOSSES}::test_case_E8_a_logprob_is_looked_up_by_the_id_of_its_token"],
    "E9": [
        f"{WEIGHTS}::test_case_E9_advantages_are_not_a_mask",
        f"{MASKED}::test_case_E9_only_a_boolean_mask_is_a_mask",
    ],
    "N1": [f"{LOSSES}::test_case_N1_the_ratio_is_new_over_old"],
    "N2": [f"{LOSSES}::test_case_N2_the_loss_of_a_bad_token_is_unbounded_by_design"],
    "N3": [
        "tests/invariance/test_policy.py::test_case_N3_the_mask_is_shifted_with_the_tokens_and_not_with_the_logits"
    ],
    "N4": ["tests/unbiased/test_kl_gradients.py::test_case_N4_as_values_k1_and_k3_are_unbiased"],
    "N5": [f"{KL}::test_case_N5_one_negative_k1_is_no_error"],
    "N6": [
        f"{CASES}::test_case_N6_grpo_starts_at_zero_and_still_moves",
        f"{LOSSES}::test_case_N6_a_loss_of_zero_is_not_a_gradient_of_zero",
    ],
    "N7": ["tests/test_critic.py::test_case_N7_the_larger_error_counts_by_design"],
    "N8": [f"{CREDIT}::test_case_N8_targets_are_advantages_plus_values"],
}
SHEET = {
    "A": (1, 4, 5, 8, 9, 10),
    "B": (1, 3, 4, 5, 6, 8, 9, 12),
    "D": (1, 2, 5, 7),
    "E": (1, 3, 4, 6, 7, 8, 9),
    "N": range(1, 9),
}


def test_every_id_of_the_sheet_has_a_test():
    assert list(INDEX) == [f"{letter}{number}" for letter, numbers in SHEET.items() for number in numbers]
    assert [case for case, tests in INDEX.items() if not tests] == []


@pytest.mark.parametrize("case", INDEX)
def test_the_tests_of_a_case_exist(case):
    assert [test for test in INDEX[case] if not exists(test)] == []
    assert any(f"::test_case_{case}_" in test for test in INDEX[case])


def test_a_test_that_does_not_exist_is_missed():
    """So that the tests above mean something."""
    assert exists(f"{CASES}::test_case_B12_the_numbers_of_the_sheet[with parameters]")
    assert not exists(f"{CASES}::test_case_B12_the_numbers_of_another_sheet")
    assert not exists("tests/no_such_file.py::test_case_B12_the_numbers_of_the_sheet")
    assert len(names_of_tests(CASES)) > 5
