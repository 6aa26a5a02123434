"""SGLang."""

import math
from collections.abc import Iterator

from kvplan.analysis.equilibrium import saturation
from kvplan.engines.base import Engine, Kind, Mention, Planned, Queue, Setting, Value
from kvplan.engines.candidates import SHARES, kv_spread, running
from kvplan.model import Plan, Replica, ServingModel
from kvplan.model.offload import Offload
from kvplan.report.assembly import Report
from kvplan.simulation.policies.sglang import FORESIGHT, ratios
from kvplan.units import format_tokens

_SUGGESTED = 0.3  # of --schedule-conservativeness
_LONG_THERE = "In SGLang 0.1.12, where it was first looked for, and in its documentation since."


def conservativeness(report: Report, model: ServingModel) -> Iterator[Value]:
    """The default is 1. Less admits more; more than what makes all output to come count changes nothing."""
    first, least, _ = ratios(1.0)
    rules = [
        (
            _SUGGESTED,
            "saturation.admissions_per_iteration",
            "less room kept for output to come, so more run: SGLang's documentation suggests it where memory stays "
            "unused while requests wait",
        )
    ]
    spread, to_come = kv_spread(report, model), _longest_to_come(model)
    if spread is not None and to_come > 0:
        for share, part in list(SHARES.items())[:-1]:
            why = (
                f"in the long run {part} standard deviation of usage, {format_tokens(spread / share)} tokens, is kept "
                "free for output to come of a full replica"
            )
            rules.append((spread / share / (least * to_come), "safety_buffer.kv_std_tokens", why))
    for number, block, why in rules:
        hundredths = max(math.ceil(round(number * 100, 6)), 1)  # of usage that hardly varies, too
        value = min(hundredths, math.ceil(100 / first)) / 100
        if value != 1:
            yield Value(f"{value:g}", block, why, value)


def _longest_to_come(model: ServingModel) -> float:
    """Tokens that all requests in a full memory may still generate, as far as SGLang counts them."""

    def up_to(tokens: int) -> int:
        """Σ min(x, 4096) for x = 1 … tokens."""
        counted = min(tokens, FORESIGHT)
        return counted * (counted + 1) // 2 + (tokens - counted) * FORESIGHT

    mix = model.mix
    longest = [model.classes[i].decode_tokens[-1] for i in mix.class_index]
    stays = [up_to(m - 1) - up_to(m - int(d)) for m, d in zip(longest, mix.decode_tokens, strict=True)]
    return saturation(model).admissions_per_iteration * float(mix.share @ stays)


def memory_fraction(report: Report, model: ServingModel, plan: Plan, cap: float) -> tuple[Mention, ...]:
    """How much memory the engine takes is not for tokens to say."""
    tokens = format_tokens(model.replica.memory_tokens)
    mention = Mention(
        "--mem-fraction-static",
        None,
        "does not follow from tokens alone, it needs weights and activations; raise it until the engine "
        f"logs the {tokens} KV tokens of the profile, or correct the profile",
        _LONG_THERE,
    )
    return (mention,)


def host_tier(tier: Offload, replica: Replica) -> Iterator[Planned]:
    """Of a pool that must be larger than the GPU's."""
    ratio = tier.memory_tokens / replica.memory_tokens
    if ratio <= 1:
        return
    why, version = "the host tier of the profile", "As SGLang documents HiCache in 2026."
    yield Planned("--enable-hierarchical-cache", None, why, version)
    yield Planned(
        "--hicache-ratio",
        f"{ratio:.4g}",
        f"{format_tokens(tier.memory_tokens)} tokens on the host for {format_tokens(replica.memory_tokens)} on the "
        "GPU; it must be larger than 1",
        f"{version} Or --hicache-size {tier.memory_bytes // replica.gpus // 10**9}, gigabytes of each rank.",
    )
    policy = "write_through" if tier.inclusive else "write_back"
    when = "as they are computed" if tier.inclusive else "when the GPU throws them away"
    yield Planned("--hicache-write-policy", policy, f"blocks are written to the host {when}", version)


ENGINE = Engine(
    name="sglang",
    title="SGLang",
    policy="sglang",
    settings=(
        Setting(
            Kind.RUNNING,
            "--max-running-requests",
            "SGLang 0.1.17 and later; 0.1.16 does not have it.",
            running,
            "max_running_requests",
        ),
        Setting(
            Kind.CONSERVATIVENESS,
            "--schedule-conservativeness",
            _LONG_THERE,
            conservativeness,
            "conservativeness",
        ),
    ),
    cache_off=Planned(
        "--disable-radix-cache",
        None,
        "prefix_caching = false in the profile, and the engine's default is mostly on",
        _LONG_THERE,
    ),
    queue=Queue(
        "--max-queued-requests",
        counts_running=False,
        version="In SGLang's server arguments, without effect in disaggregation: check your version.",
    ),
    note=(
        "SGLang's scheduler keeps room for the longest output that clients ask for, here the longest decode length of "
        "their class."
    ),
    mentions=memory_fraction,
    host_tier=host_tier,
)
