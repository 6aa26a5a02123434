"""vLLM."""

import math
from collections.abc import Iterator

from kvplan.engines.base import Engine, Kind, Mention, Planned, Queue, Setting
from kvplan.engines.candidates import batched_tokens, running, watermark
from kvplan.model import Plan, Replica, ServingModel
from kvplan.model.offload import Offload
from kvplan.report.assembly import Report
from kvplan.report.verdict import requests_in_memory
from kvplan.report.words import Status
from kvplan.units import format_number, format_seconds

_QUEUE = Queue(
    "--max-num-queued-reqs",
    counts_running=True,
    version="In vLLM 0.29.0 (pull request 49445, July 2026); beyond it clients get HTTP 503.",
)


def queue_limit(report: Report, model: ServingModel, plan: Plan, cap: float) -> tuple[Mention, ...]:
    """Little's law: who waits as long as the horizon at the sustainable rate has so many before him."""
    if report.verdict.status is not Status.OVERLOADED:
        return ()
    running = min(cap, model.replica.max_num_seqs or math.inf, math.ceil(requests_in_memory(model)))
    rate = report.load.sustainable_rps
    number = math.ceil(running + rate * plan.horizon_s)
    mention = Mention(
        _QUEUE.flag,
        str(number),
        f"the load is more than can be sustained and the queue would grow without end: {running:,.0f} running and "
        f"{format_number(rate)} requests/s for the plan's horizon of {format_seconds(plan.horizon_s)}. So nobody "
        "waits longer than that; it is the place for a shorter wait. Refusals are not simulated",
        _QUEUE.version,
    )
    return (mention,)


def drafts(tokens: int) -> Planned:
    """The number of drafts; which model makes them the profile does not know."""
    return Planned(
        "--speculative-config",
        f"'{{\"num_speculative_tokens\": {tokens}}}'",
        "the drafts of an iteration in the profile; what makes them, its method and model, belongs in it too",
        "vLLM 0.8.2 and later.",
    )


def host_tier(tier: Offload, replica: Replica) -> Iterator[Planned]:
    """Bytes of the host, of all ranks together."""
    size = f"{tier.memory_bytes / 2**30:.4g}"
    extra = f'{{"cpu_bytes_to_use": {tier.memory_bytes}, "offload_prompt_only": false}}'
    yield Planned(
        "--kv-transfer-config",
        f'\'{{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {extra}}}\'',
        "the host tier of the profile, bytes of all ranks together; generated tokens are kept too, which the connector "
        "does not do unless told",
        f"As vLLM documents its OffloadingConnector in 2026. Shorter, without generated tokens: --kv-offloading-size "
        f"{size} (GiB, of all ranks; before pull request 32421 of January 2026 with --kv-offloading-backend native).",
    )


ENGINE = Engine(
    name="vllm",
    title="vLLM",
    policy="vllm",
    settings=(
        Setting(
            Kind.RUNNING,
            "--max-num-seqs",
            "Sizes buffers and CUDA graphs too; from vLLM 0.31.0 on --max-num-active-seqs does not.",
            running,
            "max_num_seqs",
            applies=lambda model: model.replica.max_num_seqs is None,
        ),
        Setting(
            Kind.RUNNING,
            "--max-num-active-seqs",
            "vLLM 0.31.0 and later (pull request 56758).",
            running,
            "max_num_seqs",
            applies=lambda model: model.replica.max_num_seqs is not None,
            earlier="--max-num-seqs {}, which sizes buffers and CUDA graphs too.",
        ),
        Setting(
            Kind.WATERMARK,
            "--watermark",
            "Merged into vLLM in June 2026 (pull request 44594), off by default: check your version.",
            watermark,
            "watermark",
        ),
        Setting(
            Kind.TOKENS,
            "--max-num-batched-tokens",
            "vLLM refuses less than max_num_seqs.",
            batched_tokens,
            "max_num_batched_tokens",
        ),
    ),
    cache_off=Planned(
        "--no-enable-prefix-caching",
        None,
        "prefix_caching = false in the profile, and the engine's default is mostly on",
        "vLLM V1.",
    ),
    queue=_QUEUE,
    mentions=queue_limit,
    drafts=drafts,
    host_tier=host_tier,
)
