"""llama.cpp's server: slots with a context each, or one context that they share.

``initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'false'``: slots have room of their own; with ``'true'``
that is the pool of all. Before, and in today's verbose logs, ``llama_context: n_ctx = 32768`` is the room of all slots
together, in either case; so are the cells of its cache times its streams, the second number of ``10/10 seqs``. The
context of a draft model and that of a slot are smaller: the largest counts. Slots never
run out of room of their own, so together they are a memory of as many tokens.

Ollama's own engine writes ``msg=load request="{Operation:commit … Parallel:4 BatchSize:512 … KvSize:32768 …}"``: the
room of all its sequences. It fits and allocates others before.
"""

import re

from kvplan.ingest.engines import NUMBER, Capacity, EngineLog, Setting

_CONTEXT = r"llama_(?:context|new_context_with_model|init_from_model): "
_SLOTS = r"n_slots = (\d{1,9}), n_ctx_slot = (\d{1,12}), kv_unified = "

_COMMIT = r'load request="\{Operation:commit '
_CELLS = r"llama_kv_cache\w*: size = [^(]{1,40}\( *(\d+) cells, +\d+ layers, +"

LOG = EngineLog(
    engine="llama.cpp",
    looked_for="'n_ctx = …' of its context and 'n_slots = …, n_ctx_slot = …'",
    words=(
        "llama_context:",
        "llama_kv_cache",
        "llama_new_context_with_model:",
        "llama_init_from_model:",
        "n_slots",
        "n_ctx_slot",
        "loading model",
        "the slot context",
        "load request=",
        "starting ollama engine",
        "failed to ",
    ),
    capacities=(
        Capacity(re.compile(rf"{_SLOTS}'false'"), of_pool=True),
        Capacity(
            re.compile(rf"n_slots = \d{{1,9}}, n_ctx_slot = {NUMBER}, kv_unified = 'true'"), of_pool=True
        ),
        Capacity(re.compile(rf"{_CONTEXT}n_ctx +[=:] +{NUMBER}"), of_pool=True),
        Capacity(re.compile(rf"{_CELLS}\d+/ *(\d+) seqs"), of_pool=True),
        Capacity(re.compile(rf"{_COMMIT}[^}}]{{0,999}}?\bKvSize:{NUMBER}"), of_pool=True),
        Capacity(
            re.compile(rf"new slot\b[^=]{{0,20}}(?:=[^=]{{0,60}}){{0,4}}?\bn_ctx(?:_slot)? ?= ?{NUMBER}"),
            of_pool=True,
        ),
    ),
    limits=(
        (Setting.SEQS, re.compile(rf"{_CONTEXT}n_seq_max +[=:] +(\d+)")),
        (Setting.SEQS, re.compile(r"\bn_slots ?= ?(\d+)")),
        (Setting.SEQS, re.compile(r"\d cells, +\d+ layers, +(\d+)/ *\d+ seqs\)")),
        (Setting.SEQS, re.compile(rf"{_COMMIT}[^}}]{{0,999}}?\bParallel:(\d+)")),
        (Setting.BATCHED, re.compile(rf"{_COMMIT}[^}}]{{0,999}}?\bBatchSize:(\d+)")),
        (Setting.LENGTH, re.compile(r"\bn_ctx_(?:per_seq|seq|slot) *[=:] *(\d+)")),
        (Setting.BATCHED, re.compile(rf"{_CONTEXT}n_batch +[=:] +(\d+)")),
    ),
    start=r"(?:main|load_model): loading model|starting ollama engine",
    failures=r"failed to initialize the context|failed to allocate buffer for kv cache|failed to load model",
    limits_follow=True,
    largest_pool=True,
    remarks=(
        (re.compile(rf"{_SLOTS}'false'"), "{} slots with room of their own: a request has {} tokens at most"),
        (re.compile(rf"{_SLOTS}'true'"), "{} slots share one pool: a request has {} tokens at most"),
        (re.compile(rf"{_CONTEXT}n_ctx_(?:per_)?seq +[=:] +(\d{{1,12}})"), "a request has {} tokens at most"),
        (
            re.compile(
                r"the slot context \(\d{1,12}\) exceeds the training context of the model \((\d{1,12})\)"
            ),
            "a request has {} tokens at most, by the model's training",
        ),
    ),
)
