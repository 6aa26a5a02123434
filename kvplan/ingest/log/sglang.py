"""SGLang: ``max_total_num_tokens=2086558, chunked_prefill_size=8192, …, max_running_requests=33``.

Where that is missing, ``KV Cache is allocated. … #tokens: 60000, …, page_size=1``.
"""

import re

from kvplan.ingest.log.forms import BATCHED, BLOCK, NUMBER, PP, SEQS, TP, Capacity, EngineLog, argument

LOG = EngineLog(
    engine="SGLang",
    looked_for="'max_total_num_tokens=…' and 'KV Cache is allocated. #tokens: …'",
    words=("max_total_num_tokens=", "KV Cache is allocated", "server_args=", "Prefill batch"),
    capacities=(
        Capacity(re.compile(rf"(?<![\w.])max_total_num_tokens={NUMBER}")),
        Capacity(
            re.compile(rf"KV Cache is allocated\.(?:(?!KV Cache is).)*?#tokens: {NUMBER}"), of_pool=True
        ),
    ),
    limits=(
        (BLOCK, argument("page_size")),
        (SEQS, argument("max_running_requests")),
        (BATCHED, argument("max_prefill_tokens")),
        (BATCHED, argument("chunked_prefill_size")),  # where it is not off, with -1, it is the tighter one
        (TP, argument("tp_size")),
        (PP, argument("pp_size")),
    ),
    start=r"\bserver_args=",
    computed_and_found=re.compile(
        r"Prefill batch(?:(?!Prefill batch).)*?#new-token: (\d+)(?:(?!#new-token).)*?#cached-token: (\d+)"
    ),
)
