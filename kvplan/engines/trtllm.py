"""TensorRT-LLM."""

from collections.abc import Iterator

from kvplan.engines.base import Engine, Kind, Planned, Setting, Value
from kvplan.engines.candidates import batched_tokens, running
from kvplan.model import ServingModel
from kvplan.report.assembly import Report

_FILE = "For trtllm-serve --config (--extra_llm_api_options before November 2025)."


def max_utilization(report: Report, model: ServingModel) -> Iterator[Value]:
    """Without the guarantee that nobody is preempted."""
    why = "requests are admitted without room for their longest output, and paused when memory runs out"
    yield Value("MAX_UTILIZATION", "worst_cycle.loss", why)


ENGINE = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    policy="trtllm-no-evict",
    settings=(
        Setting(
            Kind.RUNNING,
            "max_batch_size",
            f"In the LLM API since TensorRT-LLM 0.16.0. {_FILE}",
            running,
            "max_num_seqs",
        ),
        Setting(
            Kind.TOKENS,
            "max_num_tokens",
            f"In the LLM API since TensorRT-LLM 0.16.0. {_FILE}",
            batched_tokens,
            "max_num_batched_tokens",
        ),
        Setting(
            Kind.SCHEDULER,
            "capacity_scheduler_policy",
            f"Documented for TensorRT-LLM 1.3 and 1.4; GUARANTEED_NO_EVICT is the default. {_FILE}",
            max_utilization,
            policy="trtllm-max-utilization",
            section="scheduler_config",
        ),
    ),
    cache_off=Planned(
        "enable_block_reuse",
        "false",
        "prefix_caching = false in the profile, and the engine's default is mostly on",
        f"Documented for TensorRT-LLM 1.3 and 1.4. {_FILE}",
        section="kv_cache_config",
    ),
    finds_prefixes=False,
    note=(
        "GUARANTEED_NO_EVICT reserves the longest output that clients ask for, here the longest decode length of "
        "their class. The policy trtllm-max-utilization simulates MAX_UTILIZATION: it pauses the last started, and "
        "computes it again."
    ),
    assigns=": ",
)
