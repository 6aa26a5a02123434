"""The policies by name."""

from kvplan.simulation.policies import (
    a_min,
    alpha_protection,
    flow,
    flow_unknown,
    greedy,
    mc,
    mc_sf,
    nested_wait,
    rate_limited,
    sarathi,
    sglang,
    trtllm_no_evict,
    vllm,
    vllm_v0,
    wait,
)
from kvplan.simulation.policies.protocol import Policy

POLICIES: dict[str, Policy] = {
    "greedy": greedy.POLICY,
    "rate-limited": rate_limited.POLICY,
    "vllm": vllm.POLICY,
    "sglang": sglang.POLICY,
    "sarathi": sarathi.POLICY,
    "vllm-v0": vllm_v0.POLICY,
    "trtllm-no-evict": trtllm_no_evict.POLICY,
    "wait": wait.POLICY,
    "nested-wait": nested_wait.POLICY,
    "flow": flow.POLICY,
    "flow-unknown": flow_unknown.POLICY,
    "alpha-protection": alpha_protection.POLICY,
    "mc": mc.POLICY,
    "mc-sf": mc_sf.POLICY,
    "a-min": a_min.POLICY,
}
