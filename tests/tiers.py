"""What runs when: some on every save (`pytest -m quick`), all on a commit, more at night (`pytest --nightly`)."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

COMMIT, NIGHTLY = 8, 400  # examples of a property that asks for no number of its own
QUICK = ("cli", "golden", "properties", "unit")  # folders
# Files of these folders that take too long for it, seconds of a processor each.
SLOW = """
cli/agreement cli/analyze cli/arrivals cli/bad_profiles cli/campaign cli/docs cli/drafts cli/emit
cli/explain_command cli/first_screens cli/hostile_input cli/html_browser cli/import cli/installed cli/mix
cli/moving_files cli/plan cli/plots cli/provenance cli/schedule cli/simulate cli/slo cli/streams cli/sweep
cli/sweep_dask cli/sweep_lies properties/bursts properties/coasting properties/drafts
properties/fleet properties/fluid_map properties/law properties/layered properties/metrics properties/mixing
properties/nested properties/overflow properties/partial_prompts properties/remedy
properties/simulated_host_tier properties/simulated_radix_tree properties/simulation properties/spans
properties/split properties/timing_fit properties/verdicts properties/wait properties/worst_cycle unit/advice
unit/cached_decisions unit/cached_reports unit/charts unit/doctests unit/drain unit/emit_settings unit/explain
unit/fleet unit/host_reports unit/html unit/imports unit/inputs unit/library unit/objectives
unit/operating_point unit/oracle unit/planning unit/prefix_cache unit/recognition unit/render unit/report
unit/request_log unit/requests unit/samples_of_windows unit/sweep unit/text_file unit/timing_fit
unit/warm_cache
"""


def examples(count: int) -> settings:
    """So many examples of a property on a commit, and at night as many times more as of any other."""
    return settings(max_examples=count * settings().max_examples // COMMIT)


def is_night() -> bool:
    """Tell whether `--nightly` was given."""
    return settings().max_examples > COMMIT


def at_night(*values: Any) -> list[Any]:
    """Parameters of a test that are for the night alone."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


# Of costly tests, how many of the cases, which prove the same of other things, run on a commit; the others are for the
# night, and so is a test of which there is none here.
KEPT = {
    "cli/test_docs::test_consoles_show_what_is_printed": 2,
    "papers/test_overflow_risk::test_the_risk_is_that_of_simulated_paths": 0,
    "cli/test_campaign::test_nothing_breaks": 1,
    "compiled/test_loops::test_compiled_and_plain_runs_leave_the_same_bytes": 1,
    "papers/test_reference_values::test_mixes_lose_more_to_a_pool_of_long_requests": 0,
    "cli/test_html_browser::test_a_page_is_silent_fits_and_can_be_read": 4,
    "properties/test_concurrency::test_where_no_eviction_is_possible_no_policy_evicts": 1,
    "properties/test_bursts::test_usage_spreads_as_on_a_path": 1,
    "properties/test_law::test_a_sweep_has_the_same_bits_as_one_report_after_the_other": 0,
    "unit/test_explain::test_nearly_every_number_has_a_calculation_somewhere": 0,
    "unit/test_explain::test_every_number_of_a_prefix_cache_has_a_calculation_somewhere": 0,
    "cli/test_analyze::test_json_has_the_same_bytes_whatever_the_hash_seed": 1,
    "papers/test_experiments::test_an_experiment_comes_out_as_recorded": 1,
    "properties/test_worst_cycle::test_a_simulated_worst_cycle_is_where_the_slow_map_goes": 1,
    "real/test_scoreboard::test_no_error_is_larger_than_on_record": 1,
    "real/test_scoreboard::test_a_few_sweeps_are_foretold": 0,
    "properties/test_fleet::test_compiled_fleets_leave_the_same_bytes": 1,
    "properties/test_rows::test_many_requests_hold_60_bytes_each_from_drawing_to_percentiles": 0,
    "real/test_roofline_sweeps::test_the_bands_shipped_are_those_of_models_left_out": 0,
    "properties/test_verdicts::test_a_replica_recovers_up_to_the_rate_that_is_said": 10,
    "properties/test_hindsight::test_no_policy_surpasses_hindsight": 3,
    "cli/test_sweep::test_a_file_cut_anywhere_is_completed_to_the_same_bytes": 1,
    "real/test_mooncake_prefixes::test_the_curve_of_the_trace_says_what_is_found": 1,
    "real/test_vllm_rtx4090::test_what_would_have_served_the_run_best_gains_what_the_page_says": 0,
    "cli/test_moving_files::test_a_pipe_that_has_a_name_is_read_as_a_file_is": 2,
    "cli/test_moving_files::test_a_result_goes_whole_through_a_pipe_that_has_a_name": 1,
    "properties/test_simulated_radix_tree::test_the_retracted_find_what_had_come_into_the_tree": 2,
    "properties/test_simulated_radix_tree::test_compiled_runs_leave_the_same_bytes": 1,
    "papers/test_host_tier::test_hits_are_those_of_two_characteristic_times": 1,
    "papers/test_host_tier::test_a_link_that_is_too_slow_costs_more_than_it_brings": 0,
    "cli/test_plots::test_a_map_has_the_rows_of_the_file_in_their_places": 1,
    "papers/test_simulated_values::test_the_rate_cap_reaches_the_equilibrium": 1,
    "papers/test_simulated_values::test_the_throughput_gap_of_wait": 0,
    "papers/test_simulated_values::test_the_rate_cap_ends_a_collapse": 0,
    "papers/test_simulated_values::test_greedy_ends_on_the_worst_cycle": 2,
    "properties/test_gaps::test_they_add_up_to_what_passes_from_the_first_token_to_the_last": 1,
    "unit/test_cached_decisions::test_fewer_users_are_whole_and_as_many_as_pass": 0,
    "unit/test_cached_decisions::test_a_sweep_has_the_figures_of_analyze": 1,
    "unit/test_sweep::test_workers_that_die_again_and_again_end_the_sweep": 0,
    "unit/test_text_file::test_a_statement_that_is_begun_again_and_again_is_searched_once": 3,
    "papers/test_flow_control::test_the_kernel_agrees_with_the_slow_simulator_on_a_quarter_of_it": 2,
    "real/test_bursts::test_the_busiest_time_of_a_described_client_is_served": 0,
    "real/test_bursts::test_enough_is_enough_in_a_replay": 1,
    "unit/test_render::test_no_line_is_wider_than_the_terminal": 20,
    "properties/test_metrics::test_intervals_of_a_percentile_cover_it": 4,
    "properties/test_fluid_map::test_every_gap_vector_gives_the_cycle_of_sic_equation_25": 4,
    "properties/test_split::test_rates_are_those_of_a_plain_search": 1,
    "properties/test_wait::test_the_queue_of_one_class_is_that_of_its_markov_chain": 1,
    "papers/test_simulated_values::test_lengths_2_and_3_evict_only_where_the_criterion_says_so": 1,
    "unit/test_cached_reports::test_what_can_collapse_is_never_called_stable": 1,
    "properties/test_nested_memory::test_required_memory_is_passed_in_a_share_delta_of_horizons_at_most": 1,
    "papers/test_prefix_theory::test_sessions_are_served_as_theory_says": 1,
    "unit/test_explain::test_every_figure_is_named_by_a_formula": 0,
    "unit/test_inputs::test_rates_and_verdict_at_the_ends_are_those_of_timings_that_are_faster_and_slower": 0,
    "real/test_scoreboard::test_points_of_a_sweep_that_are_held_out_do_not_matter": 0,
    "cli/test_html_browser::test_a_name_is_text_and_nothing_else": 1,
    "papers/test_simulated_values::test_the_memory_of_nested_wait_is_enough": 0,
    "cli/test_sweep::test_a_terminal_shows_the_rate_and_the_time_left": 0,
    "compiled/test_cache::test_where_there_is_no_folder_nothing_is_kept": 0,
    "unit/test_cached_decisions::test_replicas_in_place_of_one_have_room_for_all_users": 0,
    "real/test_roofline_sweeps::test_models_left_out_are_foretold": 0,
    "properties/test_law::test_every_field_counts_or_is_declared_not_to": 3,
    "properties/test_fleet::test_a_fleet_of_one_is_a_replica_to_the_last_bit": 6,
    "properties/test_simulation::test_a_run_keeps_every_invariant": 8,
    "unit/test_cached_reports::test_users_ask_as_fast_as_they_are_answered": 1,
    "unit/test_request_log::test_what_the_cache_had_is_no_prefill_whichever_an_engine_counts": 1,
    "unit/test_metrics::test_a_stationary_queue_is_rarely_called_growing": 1,
    "properties/test_rows::test_a_run_is_the_same_to_the_last_bit_in_few_rows_and_in_many": 10,
    "unit/test_text_file::test_a_line_without_end_is_refused": 2,
    "properties/test_nested::test_simulated_memory_passes_the_requirement_no_oftener_than_promised": 1,
    "unit/test_timing_fit::test_a_law_found_from_small_loads_foretells_larger_ones": 1,
    "cli/test_sweep::test_without_columns_there_are_a_few_computed_figures": 1,
    "properties/test_hindsight::test_a_bound_that_is_not_proven_optimal_is_still_one": 1,
    "papers/test_simulated_values::test_usage_has_the_tail_of_the_formula": 1,
    "properties/test_remedy::test_more_memory_remedies_a_verdict_that_hangs_on_a_simulated_cycle": 0,
}


def is_quick(file: Path) -> bool:
    """Tell whether the tests of a file are for every save."""
    name = f"{file.parent.name}/{file.stem.removeprefix('test_')}"
    return file.parent.name in QUICK and name not in SLOW.split()


def is_kept(item: pytest.Item, seen: dict[str, int]) -> bool:
    """Whether a test is run on a commit, where so many cases of each have been `seen`."""
    if item.get_closest_marker("nightly"):
        return False
    file, _, name = item.nodeid.partition("::")
    test = f"{file.removeprefix('tests/').removesuffix('.py')}::{name.partition('[')[0]}"
    seen[test] = seen.get(test, 0) + 1
    return seen[test] <= KEPT.get(test, seen[test])
