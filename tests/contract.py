"""The keys of the report's contract, written out independently of the code, and the keys that a document has."""

from collections.abc import Iterator
from typing import Any

_KEYS = """
schema_version kvplan_version profile.name profile.sha256 verdict.status verdict.binding verdict.summary
load.offered_rps load.work_rate load.load_factor_max load.headroom load.sustainable_rps
load.sustainable_decode_tokens_per_s load.sensitivity.memory_tokens load.sensitivity.d0 load.sensitivity.d1
equilibrium.kv_tokens equilibrium.kv_utilization equilibrium.iteration_time_s equilibrium.requests_in_flight
equilibrium.decode_tokens_per_s equilibrium.prompt_iterations_per_s equilibrium.classes[].name
equilibrium.classes[].per_stage equilibrium.classes[].in_flight saturation.admissions_per_iteration
saturation.iteration_time_s saturation.throughput_rps worst_cycle.kind worst_cycle.throughput_per_iteration
worst_cycle.throughput_rps worst_cycle.loss worst_cycle.evictions_per_iteration worst_cycle.period
worst_cycle.danger_zone_rps worst_cycle.classes[].name worst_cycle.classes[].kind
worst_cycle.classes[].throughput_per_iteration worst_cycle.classes[].throughput_rps worst_cycle.classes[].loss
worst_cycle.classes[].evictions_per_iteration worst_cycle.classes[].period stability.gcd
stability.spectral_radius stability.unstable_modes stability.stable stability.certified
stability.recovery_iterations stability.min_stable_input_tokens.exact
stability.min_stable_input_tokens.asymptotic stability.advice rate_cap.per_iteration rate_cap.per_second
rate_cap.classes[].name rate_cap.classes[].per_iteration rate_cap.classes[].integer_budget
rate_cap.engine_max_num_seqs wait.feasible wait.thresholds[] wait.iteration_time_s wait.kv_tokens wait.fits
wait.classes[].name wait.classes[].threshold wait.classes[].mean_wait_bound_s wait.classes[].latency_s
wait.max_thresholds[] nested_wait.feasible nested_wait.segments[].upto_decode nested_wait.segments[].rate_rps
nested_wait.segments[].continue_probability nested_wait.segments[].threshold nested_wait.segments[].theta
nested_wait.segments[].queue_bound nested_wait.base_kv_tokens nested_wait.boundary_kv_tokens
nested_wait.high_probability_kv_tokens nested_wait.required_kv_tokens nested_wait.fits
safety_buffer.kv_std_tokens safety_buffer.overflow_probability_per_iteration
safety_buffer.overflow_probability_horizon safety_buffer.required_kv_tokens safety_buffer.watermark_fraction
safety_buffer.theorem_bound simulation sources notes[]
"""
KEYS = _KEYS.split()

BLOCKS = list(dict.fromkeys(key.partition(".")[0].removesuffix("[]") for key in KEYS))


def keys_of(document: dict[str, Any]) -> set[str]:
    """The keys of a document as the contract writes them; a list that is empty or null counts with its items."""
    found = {key for path in _leaves(document) for key in KEYS if path in (key, key.removesuffix("[]"))}
    lists = {key.partition("[]")[0] for key in KEYS if "[]" in key}
    absent = {path for path in _leaves(document) if path in lists}
    found |= {key for key in KEYS if key.partition("[]")[0] in absent}
    unknown = {path for path in _leaves(document) if path not in absent and path not in found}
    return found | unknown


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and path != "sources":
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and value and path != "worst_cycle.danger_zone_rps":
        for item in value:
            yield from _leaves(item, f"{path}[]")
    else:
        yield path
