"""TGI: ``Setting max batch total tokens to 446320``; its metrics have lengths, and no capacity."""

import re

from kvplan.ingest.engines import NUMBER, Capacity, EngineLog, EngineMetrics

LOG = EngineLog(
    engine="TGI",
    looked_for="'Setting max batch total tokens to …'",
    words=("max batch total tokens",),
    capacities=(Capacity(re.compile(rf"Setting max batch total tokens to {NUMBER}")),),
)

METRICS = EngineMetrics(
    engine="TGI",
    prefix="tgi",
    prompt="tgi:request_input_length",
    generation="tgi:request_generated_tokens",
    requests=("tgi:request_success", "tgi:request_success_total"),
    without_histograms="TGI exports them at /metrics",
)
