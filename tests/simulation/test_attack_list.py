"""Every attack on the rules of a round that was thought of before they were written, in a line of words, and what is tested of it:
tests by file and name, scripted scenarios (test_scenarios.py plays them) by name. Not here, because what it attacks is not built:
a lane of a pipeline that is counted in one stage only. Not here, because nothing finds it yet (SECURITY.md): bad deltas within their
bounds, and work that was not done.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.simulation.cases import CASES

TESTS: Final = Path(__file__).resolve().parents[1]

PLAYED: Final = frozenset(name for name, _ in CASES)
NOT_RUN: Final = frozenset(("skip", "skipif", "xfail"))

ROUND = "simulation/test_attacks"
SIDES = "simulation/test_lineage_attacks"
RECORDS = "simulation/test_record_attacks"
ROSTERS = "simulation/test_roster_attacks"
STALLS = "simulation/test_stalling_attacks"
RULES = "protocol/rounds/lineage/test_record_rules"
UNSIGNED = f"{RECORDS}::test_a_record_that_says_what_nobody_signed_is_acked_by_nobody_and_the_round_goes_on_without_it"
DAEMONS = "e2e/test_liars::test_each_lie_of_an_admitted_peer_is_refused_by_name_and_the_rounds_of_the_honest_go_on"
CORE = "protocol/rounds/test_"
AUDITS = "averaging/rounds/audit/"
SHELL = "averaging/rounds/test_"

ATTACKS: Final[dict[str, tuple[str, ...]]] = {
    # --- within a round ---
    "a successor finishes a round that its frozen opener had committed already": (
        f"{ROUND}::test_two_openers_on_one_base_commit_once",
        f"{ROUND}::test_an_opener_that_freezes_between_its_own_commit_and_the_first_word_about_it_agrees_with_its_successor",
        "opener-frozen-before-it-tells",
    ),
    "acks split in two halves, and an old record comes late": (
        f"{ROUND}::test_acks_that_a_cut_divides_in_two_halves_end_in_one_commit_whatever_comes_late",
        "acks-split-in-two",
    ),
    "a commit is announced and its bytes die with those who had them": (
        f"{ROUND}::test_a_record_whose_bytes_only_the_dead_had_is_never_committed_and_the_round_is",
        f"{ROUND}::test_a_quorum_holds_all_bytes_of_a_commit_before_it_exists",
        f"{ROUND}::test_a_heavier_lone_lineage_costs_a_quorum_nothing_whether_its_holder_lives_or_not",
    ),
    "the same update with other counters makes two histories of one name": (
        f"{ROUND}::test_a_report_that_comes_too_late_changes_nothing_in_a_record_that_somebody_acked",
        "protocol/rounds/messages/test_wire::test_a_commit_id_names_its_parent_and_every_byte_of_its_record",
    ),
    "the same history with another state: a bit flipped in memory": (
        "protocol/rounds/schedule/test_proposal::test_the_state_that_most_contributors_computed_is_attested_and_a_tie_goes_to_the_lower_root",
        "averaging/rounds/fetching/test_state_repair::test_a_flipped_value_is_found_by_the_attested_root_and_the_state_is_made_again_from_the_own_disk",
        "averaging/rounds/fetching/test_state_repair::test_meanwhile_it_serves_no_state",
        "averaging/rounds/test_unit_service::test_who_found_its_own_state_wrong_opens_nothing_and_contributes_nothing_until_it_is_healed",
    ),
    "results of an attempt that was given up are mixed with those of the next": (
        f"{ROUND}::test_results_of_an_attempt_that_ended_are_not_mixed_with_those_of_the_next",
        "three-attempts-on-one-base",
    ),
    "an attempt is given up, and then its commit arrives": (
        f"{ROUND}::test_a_commit_that_comes_after_its_attempt_was_given_up_counts_every_contribution_once",
        f"{CORE}machine::test_one_contribution_serves_all_attempts_on_a_base",
    ),
    "the same half-deaf peer opens for ever, or fences off everybody else": (
        f"{ROUND}::test_an_opener_whom_half_cannot_hear_is_not_the_opener_for_ever",
        f"{ROUND}::test_who_sends_but_hears_nobody_holds_up_one_attempt_and_fences_off_nobody",
        f"{ROUND}::test_who_hears_but_cannot_send_holds_up_nobody",
        "deaf-for-long",
        "mute-for-long",
        "flapping-peer",
    ),
    "the heaviest peer misses every deadline, or deadlines are learned from those alone who keep them": (
        f"{ROUND}::test_the_heaviest_member_missing_every_deadline_stops_no_round",
        f"{CORE}attempt::test_deadlines_are_learned_from_the_slowest_upload_up_to_the_longest_interval",
        f"{CORE}attempt::test_each_failed_attempt_doubles_the_deadline",
        "averaging/rounds/traffic/test_upload_meter::test_an_upload_is_measured_when_it_ends_and_extrapolated_while_it_does_not",
        "heaviest-is-always-late",
    ),
    "too few can be reached to place all slices": (
        f"{ROUND}::test_five_members_of_whom_few_can_be_reached_still_sum_the_whole_vector",
        "protocol/rounds/schedule/test_proposal::test_two_reachable_reducers_of_five_members_still_place_the_whole_vector",
        "one-of-five-is-reachable",
        "holders-behind-walls",
    ),
    "one member weighs differently in two slices": (
        f"{CORE}attempt::test_one_weight_cap_holds_for_all_reducers_and_counts_those_with_work_only",
        "averaging/rounds/exchange/test_reduction::test_the_result_is_the_weighted_mean_with_weights_capped_and_members_in_fixed_order",
    ),
    "an honest member that restarts says two things about one base": (
        f"{ROUND}::test_a_member_that_restarts_in_the_exchange_takes_no_part_in_it_and_in_the_next_round_again",
        "averaging/rounds/exchange/test_offered_contributions::test_a_second_root_of_one_member_on_one_base_is_refused",
        "averaging/rounds/exchange/test_offered_contributions::test_a_new_session_that_the_proposal_names_may_offer_again_and_the_one_before_counts_no_more",
        "protocol/rounds/test_machine::test_the_result_of_a_restarted_member_is_no_part_of_the_old_exchange",
    ),
    "what a sparse result leaves out is remembered at its reducer, and dies with it": (
        "averaging/rounds/exchange/test_reduction::test_what_is_summed_as_it_arrives_has_the_bytes_of_what_is_summed_at_the_end",
        "averaging/rounds/exchange/test_reduction::test_what_a_result_left_out_does_not_come_with_the_next_one",
    ),
    # --- between lineages ---
    "two seconds of bad wifi make a lineage": (f"{SIDES}::test_seconds_of_bad_wifi_make_no_lineage_of_their_own",),
    "everybody swaps sides, again and again": (
        f"{SIDES}::test_two_near_equal_sides_in_full_contact_switch_few_times",
        "protocol/rounds/lineage/test_lineage::test_two_sides_of_near_equal_work_do_not_send_anybody_back_and_forth",
        f"{CORE}following::test_what_was_fetched_is_judged_again_before_the_head_moves",
        "near-equal-lineages",
        "split-again-during-resync",
    ),
    "the heavier lineage is out of reach, and the lighter one stands still for it": (
        f"{CORE}following::test_a_side_whose_download_takes_long_does_not_stand_still_meanwhile",
        f"{CORE}following::test_a_newer_commit_on_the_lineage_that_is_being_fetched_does_not_begin_the_fetch_again",
        "averaging/rounds/fetching/test_download::test_a_donor_keeps_what_is_being_downloaded_while_it_goes_on",
        "heavier-lineage-out-of-reach",
    ),
    "total tokens mean one thing here and another there": (
        "protocol/rounds/lineage/test_chain::test_a_record_whose_sums_are_wrong_is_refused",
        "protocol/rounds/schedule/test_proposal::test_a_record_credits_tokens_in_proportion_to_covered_chunks",
    ),
    "one large node cut off by itself outweighs all others, for its cap is made of its own tokens": (
        "protocol/rounds/lineage/test_lineage::test_the_cap_that_counts_is_that_of_the_commit_behind_both_and_of_no_commit_after_it",
        "protocol/rounds/lineage/test_lineage::test_a_commit_of_a_quorum_goes_before_a_lone_one_whatever_work_follows_that",
    ),
    "a liar alone writes 10^18 tokens": (
        f"{SIDES}::test_a_liar_that_writes_any_number_of_tokens_into_a_lone_commit_takes_nobody_along",
        "protocol/rounds/lineage/test_lineage::test_one_record_with_any_number_of_tokens_counts_for_the_cap_that_was_agreed_on_before_it",
        "protocol/rounds/lineage/test_lineage::test_each_fork_on_the_way_counts_with_its_own_cap",
    ),
    "lineages of equal worth": (
        f"{SIDES}::test_three_lone_lineages_of_equal_worth_become_one_and_nobody_goes_back_and_forth",
        "protocol/rounds/lineage/test_lineage::test_then_the_larger_roster_is_preferred_and_then_the_lower_id",
    ),
    "one fragment is taken from this side and the next from the other": (
        "protocol/rounds/lineage/test_lineage::test_one_commit_made_with_another_spine_spoils_the_line_also_where_later_ones_cite_the_followed_spine",
        f"{CORE}following::test_if_only_one_side_moved_a_unit_it_is_followed_whatever_spine_it_cites",
        f"{SHELL}peer_rounds::test_when_the_spine_changes_lineages_all_units_go_with_it_in_one_record",
        f"{SHELL}head_vector::test_a_crash_at_any_moment_leaves_all_heads_here_or_all_there",
        "fragments-cut-3-2",
        "expert-of-the-losing-side",
    ),
    "two holders cannot reach each other, and each goes on alone": (
        f"{ROUND}::test_two_members_that_cannot_reach_each_other_stay_on_one_lineage",
        "protocol/rounds/test_queries::test_one_dead_link_makes_no_suspect_while_others_hear_the_peer",
        "pair-that-cannot-meet",
        "only-holders-apart",
    ),
    "who wakes up finds every deadline over and commits alone": (
        f"{SIDES}::test_who_wakes_up_after_a_long_freeze_suspects_nobody_and_commits_nothing_alone",
        f"{SIDES}::test_when_all_but_one_were_frozen_longer_than_its_patience_they_end_on_one_lineage",
        f"{CORE}liveness::test_our_own_sleep_makes_nobody_silent_and_no_patience_shorter",
        "one-frozen",
        "all-frozen",
    ),
    "the work of the side that lost is thrown away, or applied twice": (
        "averaging/rounds/lineage/test_adoption::test_a_switch_puts_all_work_since_the_fork_on_the_anchor_that_won_and_gives_its_tokens_back",
        "averaging/rounds/lineage/test_adoption::test_a_contribution_counted_on_the_winning_lineage_is_not_applied_twice",
        "averaging/rounds/test_lineage_driver::test_a_switch_puts_our_work_since_the_fork_on_the_anchor_that_won",
    ),
    "what is offered after a switch does not fit: it is given up, and said so": (
        "averaging/rounds/lineage/test_adoption::test_without_the_anchor_at_the_fork_only_the_work_since_the_last_commit_is_offered_again",
        "averaging/rounds/lineage/test_adoption::test_work_that_was_counted_and_is_no_longer_here_is_rather_lost_than_applied_twice",
        "averaging/rounds/lineage/test_trainer_updates::test_work_counted_elsewhere_that_is_no_longer_here_makes_the_trainer_start_from_the_anchor",
        "averaging/rounds/exchange/test_reduction::test_a_delta_beyond_all_measure_is_left_out_and_named",
        "protocol/rounds/schedule/test_proposal::test_a_late_member_is_credited_with_its_share_below_the_cap_and_spends_what_is_covered",
    ),
    "the index goes down, for the lineage that won has fewer rounds": (
        f"{CORE}following::test_a_lineage_may_be_left_for_one_with_fewer_rounds_and_more_tokens",
        "coordinator/progress/test_chain_log::test_a_fork_of_a_lower_index_is_asked_for_too",
        "coordinator/progress/test_chain_log::test_replay_of_both_sides_of_a_fork_follows_the_heavier",
        "host-returns-with-an-old-copy",
    ),
    # --- crashes, absences, rosters ---
    "a kill in the exchange, and what was sent is offered a second time": (
        "averaging/rounds/exchange/test_exchange_driver::test_the_root_of_a_contribution_is_on_disk_when_the_machine_hears_of_it",
        "averaging/rounds/lineage/test_adoption::test_a_contribution_of_an_earlier_session_of_ours_takes_nothing_out_of_this_ones_work",
        "averaging/rounds/lineage/test_unit_chain::test_data_goes_on_after_what_any_session_offered_on_the_open_base",
        "leader-crashes-everywhere",
        "member-crashes-everywhere",
    ),
    "a kill in the exchange, and the residual that went out with what was counted is offered a second time": (
        "averaging/rounds/lineage/test_unit_feedback::test_a_commit_that_came_while_we_were_away_makes_the_saved_pending_residual_the_one",
        "averaging/rounds/lineage/test_unit_feedback::test_a_pending_residual_that_was_not_written_yet_is_zero_once_its_contribution_is_counted",
        "averaging/rounds/lineage/test_unit_feedback::test_a_contribution_that_was_not_counted_while_we_were_away_leaves_the_residual_as_it_was_stored",
        "averaging/rounds/lineage/test_unit_feedback::test_a_crash_at_any_moment_of_writing_leaves_the_residual_of_the_lineage_or_zeros",
        "simulation/test_owed::test_a_residual_that_a_restart_brings_back_although_it_was_counted_is_found",
        "member-with-feedback-crashes-everywhere",
    ),
    "an upload reaches some of the reducers only": (
        "averaging/rounds/lineage/test_adoption::test_chunks_that_were_not_counted_keep_all_work_and_only_the_counted_tokens_are_spent",
        "protocol/rounds/schedule/test_proposal::test_a_record_credits_tokens_in_proportion_to_covered_chunks",
        "part-of-the-slices",
    ),
    "tokens of a training process that died are still offered": (
        "peer/training/test_trainer::test_a_training_process_obeys_at_step_boundaries_and_comes_back_from_the_anchor",
        "peer/training/test_trainer::test_a_commit_after_a_death_loads_the_anchor_instead_of_the_shift",
        "worker-dies-before-the-commit",
        "worker-dies-before-the-shift",
    ),
    "what is needed to catch up is kept by nobody any more": (
        f"{ROUND}::test_who_missed_more_rounds_than_are_replayed_takes_over_a_whole_state",
        f"{CORE}following::test_a_stalled_commit_with_a_successor_is_passed_over_by_fetching_a_whole_state",
        "averaging/rounds/lineage/test_unit_chain::test_pruning_bounds_the_updates_and_keeps_what_a_replay_needs",
        "coordinator/progress/test_chain_log::test_a_ledger_without_a_commit_stands_before_it_until_it_is_brought",
    ),
    "a voter forgets its votes, or everybody loses power in the middle of a commit": (
        f"{ROUND}::test_a_voter_that_lost_its_disk_makes_no_second_quorum",
        f"{ROUND}::test_a_lost_disk_beside_a_dead_peer_does_not_stop_the_run_for_ever",
        f"{ROUND}::test_after_a_power_cut_in_the_middle_of_a_commit_the_acked_round_is_finished_and_not_redone",
        "power-cut-after-the-quorum",
        "ack-of-the-last-but-one",
    ),
    "credentials end while the host is away, and a history is judged by today's": (
        "peer/membership/test_credential_cache::test_who_votes_on_our_head_stays_a_member_while_the_host_is_away",
        "peer/membership/test_credential_cache::test_a_voter_that_was_not_seen_before_is_judged_as_of_the_hosts_last_word",
        "protocol/identity/test_envelope::test_an_expired_envelope_is_refused_unless_judged_as_of_its_round",
    ),
    "a ban is known on one side only, or to who replays what the banned signed": (
        f"{SIDES}::test_a_ban_of_which_one_side_has_heard_parts_nobody_and_what_counts_the_banned_stands",
        f"{SHELL}peer_rounds::test_a_banned_peer_is_lost_to_all_units_whatever_it_answers",
        "peer/membership/test_credential_cache::test_a_banned_voter_has_no_grace_and_no_place_in_the_directory",
        "peer/membership/test_revocations::test_a_ban_reaches_everybody_from_one_who_heard_of_it_and_then_nothing_more_is_sent",
    ),
    "the roster shrinks to those who ack first": (
        f"{ROUND}::test_a_roster_does_not_shrink_to_those_who_ack_first",
        f"{ROUND}::test_a_roster_does_not_shrink_to_those_whose_heartbeats_come_first",
        f"{ROUND}::test_rosters_that_lose_one_peer_after_another_go_on_down_to_the_last_without_a_lone_commit",
    ),
    "stages are cut across, and each side advances another one": (
        "protocol/rounds/lineage/test_quorum::test_the_tie_holder_depends_on_the_run_and_the_roster_only",
        "stages-cut-across",
    ),
    "schedules of several units go by different tokens": (
        "protocol/rounds/test_queries::test_the_run_is_over_when_the_spine_has_its_tokens_whatever_the_unit_has",
        f"{SHELL}peer_rounds::test_after_a_move_every_units_schedule_goes_by_the_tokens_of_the_spine_where_it_went",
    ),
    # --- of one admitted member ---
    "a leader writes itself as the only next voter": (
        UNSIGNED,
        DAEMONS,
        f"{RECORDS}::test_a_lie_that_only_its_leader_acked_is_not_finished_by_the_next_one",
        f"{ROSTERS}::test_a_leader_that_leaves_live_voters_out_of_its_proposal_drops_none_of_them",
        f"{RULES}::test_a_record_of_one_alone_cannot_make_itself_the_only_voter",
    ),
    "a leader credits itself until the run is over": (
        UNSIGNED,
        DAEMONS,
        f"{RULES}::test_a_lie_about_tokens_that_all_sign_credits_no_more_than_a_few_rounds_and_cannot_end_a_run",
    ),
    "a member signs a history alone, from the start or from the head, with its own key or with keys that nobody admitted": (
        f"{RECORDS}::test_commits_that_a_member_signs_alone_are_followed_by_nobody_who_has_a_quorum",
        f"{RECORDS}::test_commits_of_keys_that_nobody_admitted_are_worth_nothing",
        DAEMONS,
        (
            "simulation/test_restart_attacks::"
            "test_a_commit_that_a_member_signs_alone_is_not_followed_by_peers_that_have_just_started"
        ),
        (
            "coordinator/progress/test_live_lineages::"
            "test_a_lone_commit_is_refused_while_more_than_half_of_its_bases_voters_stand_elsewhere"
        ),
    ),
    "a leader tries records until it leads the next round, too": (
        f"{RECORDS}::test_no_words_in_a_record_change_who_leads_the_next_round",
        "protocol/rounds/lineage/test_quorum::test_a_leader_cannot_choose_the_next_opener_by_what_it_writes_into_its_record",
        UNSIGNED,
    ),
    "a leader settles bytes that nobody summed": (
        UNSIGNED,
        f"{RULES}::test_what_a_contributor_or_a_reducer_did_not_sign_is_refused",
        "protocol/rounds/test_bad_results::test_who_does_not_lead_gives_nothing_away_and_acks_no_record_that_names_it",
    ),
    "a leader counts itself alone, or the others as next to nothing": (
        UNSIGNED,
        f"{RECORDS}::test_a_leader_whose_cap_counts_everybodys_work_as_next_to_nothing_commits_nothing",
    ),
    "a member fences off all attempts with higher and higher ballots": (
        f"{RECORDS}::test_promises_that_a_member_asks_for_without_consent_hold_up_nobody",
        f"{RECORDS}::test_proposals_of_a_take_over_without_consent_are_joined_by_nobody",
        f"{RECORDS}::test_a_settled_record_of_a_take_over_needs_the_promises_of_a_quorum",
        f"{STALLS}::test_a_member_that_asks_for_one_promise_after_another_and_proposes_nothing_does_not_stop_the_rounds",
    ),
    "a reducer announces a result and gives it to nobody": (
        f"{RECORDS}::test_a_reducer_that_announces_its_result_and_gives_it_to_nobody_loses_its_slice",
        f"{RECORDS}::test_a_record_of_results_that_only_its_leader_has_is_not_finished_by_the_next_one",
        DAEMONS,
    ),
    "a member votes twice on one base": (
        f"{RECORDS}::test_two_acks_of_one_voter_convict_it_and_nothing_of_it_counts_any_more",
        "simulation/test_goodbye_attacks::test_a_voter_whose_goodbye_hides_its_ack_is_convicted_when_both_commits_meet",
        (
            "coordinator/ledger/test_convictions::"
            "test_a_proven_double_vote_bans_the_voter_and_the_answer_brings_the_ban_with_the_proof_in_words"
        ),
        "coordinator/ledger/test_convictions::test_voters_of_both_sides_of_a_fork_that_the_host_records_are_banned",
    ),
    "a reducer sums falsely and signs what comes out": (
        f"{AUDITS}test_unit_audits::test_a_reducer_that_signs_false_sums_is_out_everywhere_and_the_others_go_on",
        f"{AUDITS}test_sum_check::test_no_chunk_of_an_honest_sum_convicts_its_reducer_and_each_false_one_does",
        f"{AUDITS}test_sum_check::test_a_sum_that_counts_a_chunk_which_cannot_be_decoded_is_false",
        f"{AUDITS}test_chunk_fetch::test_where_the_reducer_shows_nothing_the_contributors_show_their_own",
        "simulation/test_liars::test_who_signs_false_sums_is_convicted_by_a_proof_and_nobody_honest_is",
        "coordinator/audits/test_sum_judge::test_a_proof_that_a_member_shows_bans_the_reducer_in_words",
    ),
    "a member accuses an honest reducer of a false sum": (
        f"{AUDITS}test_sum_check::test_a_proof_in_which_anything_is_changed_convicts_nobody",
        f"{AUDITS}test_sum_check::test_what_another_key_or_the_same_key_in_another_run_signed_convicts_nobody",
        f"{AUDITS}test_sum_proofs::test_accusations_without_a_proof_convict_nobody_and_are_looked_at_once",
        f"{CORE}bad_results::test_an_accusation_far_behind_the_head_is_not_followed",
        "coordinator/audits/test_sum_judge::test_an_accusation_without_a_proof_bans_nobody_and_is_looked_at_once",
    ),
    "a proof comes while its record is acked by some": (
        f"{CORE}bad_results::test_a_record_that_others_may_have_acked_is_finished_as_it_is_false_sums_and_all",
        f"{CORE}bad_results::test_a_fresh_record_with_a_false_sum_is_not_acked_by_who_has_the_proof_also_while_its_bytes_come",
    ),
    "a reducer writes false tokens and roots of others": (
        f"{RECORDS}::test_a_reducer_that_writes_false_counts_of_others_into_its_result_is_not_believed",
        DAEMONS,
        f"{RULES}::test_a_result_that_counts_what_nobody_signed_or_that_its_reducer_did_not_sign_is_no_result",
    ),
    "a member claims far more tokens than it trained": (
        f"{RULES}::test_one_that_claims_far_more_than_the_others_is_credited_with_a_few_times_their_median",
        f"{RULES}::test_of_two_contributors_neither_raises_the_cap_by_its_own_claim",
        f"{ROSTERS}::test_in_a_run_of_two_a_lie_about_tokens_credits_no_more_than_four_targets_a_round",
    ),
    "a member says that its line is far faster than it is, and gets most of the vector": (
        "protocol/rounds/schedule/test_proposal::test_no_reducer_gets_more_than_its_cap_when_one_link_is_far_faster",
        f"{STALLS}::test_a_reducer_that_never_answers_with_a_result_costs_each_leader_one_deadline_and_not_every_round",
    ),
    "a member reports any held-out loss": (
        (
            "coordinator/progress/test_heldout_core::"
            "test_the_loss_and_the_prose_of_a_commit_are_shown_from_the_peer_whose_turn_it_is"
        ),
        (
            "coordinator/progress/test_tracker::"
            "test_a_loss_of_a_peer_whose_turn_it_is_not_is_shown_after_two_more_commits_and_gives_way_to_the_evaluators"
        ),
        "coordinator/progress/test_tracker::test_a_peer_outside_the_roster_has_no_say_about_a_loss_and_a_line_says_so",
    ),
    "a leader attests a state that most do not have": (
        UNSIGNED,
        f"{RULES}::test_contributors_that_attest_different_states_are_all_entered_and_the_most_named_one_counts",
    ),
    "a member offers the bytes of an earlier round again": (
        "averaging/rounds/exchange/test_offered_contributions::test_another_session_peer_base_or_codec_is_refused",
        f"{RULES}::test_a_seal_of_another_member_or_for_another_round_proves_nothing",
    ),
    "a member brings bytes that mean nothing": (
        "simulation/test_bad_frames::test_whose_contribution_means_nothing_is_left_out_by_name_and_the_others_commit",
        (
            "simulation/test_bad_frames::"
            "test_a_reducer_whose_result_means_nothing_is_named_and_loses_its_slice_within_the_round"
        ),
    ),
}


@cache
def _module(file: str) -> ModuleType:
    return importlib.import_module(f"tests.{file.replace('/', '.')}")


@cache
def _defined(file: str) -> Counter[str]:
    tree = ast.parse((TESTS / f"{file}.py").read_text())
    return Counter(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _why_not_run(file: str, name: str) -> str:
    """The reason why pytest does not run this function as a test; empty if it does."""
    found = getattr(_module(file), name, None)
    if not inspect.isfunction(found) or _defined(file)[name] != 1:
        return f"is defined {_defined(file)[name]} times as a function"
    if not (Path(file).name.startswith("test_") and name.startswith("test_")):
        return "is not named as tests are"
    marks = {mark.name for mark in (*getattr(found, "pytestmark", ()), *getattr(_module(file), "pytestmark", ()))}
    return f"is marked {marks & NOT_RUN}" if marks & NOT_RUN else ""


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_is_answered_by_tests_that_pytest_collects_and_scenarios_that_are_played(attack: str) -> None:
    assert ATTACKS[attack]
    for named in ATTACKS[attack]:
        file, _, name = named.partition("::")
        if name:
            assert _why_not_run(file, name) == "", named
        else:
            assert named in PLAYED, named


def test_what_pytest_does_not_collect_is_told() -> None:
    assert "0 times" in _why_not_run(f"{ROUND}", "test_of_nothing")
    assert "0 times" in _why_not_run(f"{ROUND}", "permutations")
    assert "not named" in _why_not_run(f"{ROUND}", "_heads")
    assert "not named" in _why_not_run("simulation/stories", "simulate")
