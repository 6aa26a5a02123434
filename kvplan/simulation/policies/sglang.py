"""SGLang's scheduler: room is kept for a share of the output still to come, which adapts to retractions.

Memory is counted as in `vllm`, but all blocks are usable: tokens computed so far, in whole blocks. Where the engine
has several modes, SGLang 0.5's default is modelled (`Scheduler.get_next_batch_to_run`, `PrefillAdder` and
`ScheduleBatch.retract_decode` in `scheduler.py`, `schedule_policy.py` and `schedule_batch.py` of
`python/sglang/srt/managers`):

- Prompts first, in iterations without decodes (`enable_mixed_chunk` is off); all running requests get a token in
  every other one. The budget limits prompts alone, and a prompt cut by it goes on in the next iteration.
- A request admitted in this same iteration counts with its whole longest output, not with a share of it.
- A longest output beyond the memory is cut to what is left beside the prompt.
- The share decays in iterations that decode without retracting; it is the first one again where nothing runs.
- Requests are retracted until the others can decode; of equals the one that came last into the batch. They go to the
  end of the queue, and compute prompt and generated tokens again. One that cannot go on alone can never end.

With `prefix_caching` (`kvplan.simulation.radix_cache`) the next in line is looked up whenever it
is asked for, and needs room only for misses. Full pages of prompts are in the tree once they are computed, those of
answers when the request is done; a retracted one leaves pages put there before. Leaves go when room lacks, and when a
request is retracted, so that 20 tokens for each of those left are free.

Windows beside full attention have a pool of their own (its `SWATokenToKVPoolAllocator`), of `swa_full_tokens_ratio`
times as many tokens:

- A request frees the pages of a window that it has passed before it takes others, as in `vllm`; all who decode do so
  first.
- Admission needs room in the pool of windows for the tokens computed now, and for a window at least.
- A prompt that goes on is cut to the room in both pools. Without any, the others decode; where none of them is left
  then, it goes on.

It looks for new requests after so many steps of decodes (`--scheduler-recv-interval`, `scheduler_recv_skipper.py`);
after prompts, and where nothing runs, at once. Until then they stand in a queue of their own.

After an iteration of prompts come so many of decodes (`--prefill-decode-interval`, pull request 35017 of August 2026),
before prompts begin or go on; with data-parallel ranks after one in which any rank computed some. Where nobody decodes,
at no rank, those take no time.

Left out: the page that admission sets aside beyond whole blocks, chunks cut to whole pages, and the flag that spares
SGLang from asking again until a request has ended.
"""

import numpy as np

from kvplan.errors import UsageError
from kvplan.model import Engine, EngineName
from kvplan.model.kv_layout import Attention, KvLayout
from kvplan.simulation.actions import advance, members_tokens, overflows, seat, seat_is_free, stand_by
from kvplan.simulation.initial_state import Pools, Setup
from kvplan.simulation.policies.parameters import (
    MAX_NEW,
    MOST_RUNNING,
    PATIENCE,
    longest_outputs,
    whole_number,
    within_limits,
)
from kvplan.simulation.policies.protocol import SEQUENCES, TOKENS, Policy, Scenario, Settings
from kvplan.simulation.policies.vllm import compute_prompt, preempt, prefix_caching
from kvplan.simulation.prefix_cache import caches
from kvplan.simulation.queues import append, take_out
from kvplan.simulation.radix_cache import enter_tree, held_by_nobody, hold_found, look_up, make_room
from kvplan.simulation.state import (
    MAX_TOKENS,
    NOBODY,
    STANDS_BY,
    Blocks,
    Cache,
    Counter,
    Fixed,
    Group,
    List,
    Request,
    State,
    group_list,
    kernel,
    parallel,
    pooled,
    sequence,
)

RATIO, FIRST_RATIO, LEAST_RATIO, DECAY, EXCESS, RECEIVE_EVERY, STEPS, DECODES_AFTER = range(1, 9)
RECEIVED, SENT = range(2)  # queues
FORESIGHT = 4096  # tokens of output still to come that count at most
_INITIAL, _LEAST, _DECAY_ITERATIONS = 0.7, 0.14, 600
_STEPS_AHEAD = 20


@kernel
def form_batch(s: State) -> None:
    """Receive requests, if it is time, and run an iteration."""
    if s.knobs[RECEIVE_EVERY] > 1 and (
        s.knobs[STEPS] >= s.knobs[RECEIVE_EVERY] or s.counter[Counter.RESIDENT] == 0
    ):
        receive(s)
    schedule(s)
    s.knobs[STEPS] = s.knobs[RECEIVE_EVERY] if s.group[0, Group.RUNS] == STANDS_BY else s.knobs[STEPS] + 1


@kernel
def receive(s: State) -> None:
    """Let all who were sent join those received."""
    s.knobs[STEPS] = 0
    request = s.list[SENT, List.HEAD]
    while request != NOBODY:
        take_out(s, request)
        s.request[request, Request.QUEUE] = RECEIVED
        append(s, RECEIVED, request)
        request = s.list[SENT, List.HEAD]


@kernel
def schedule(s: State) -> None:
    """Compute prompts, if any goes on or is admitted; else a token for all who run."""
    if caches(s):
        remember_prompts(s)
    if owes_decodes(s):
        s.counter[Counter.OWED] -= 1
        if s.list[group_list(s, 0), List.LENGTH] == 0:  # beside ranks that decode
            stand_by(s, 0)
            return
        decode(s)
        if s.counter[Counter.PARTLY] == NOBODY or s.list[group_list(s, 0), List.LENGTH] > 0:
            return
    begun = s.counter[Counter.PARTLY]
    if s.knobs[EXCESS] > 0 and (begun != NOBODY or next_fits(s, reserve(s))):
        s.knobs[EXCESS] = excess(s)
    budget = int(s.knobs[MAX_TOKENS])
    if begun != NOBODY and pooled(s):
        if room_for_more(s, begun) <= 0:
            decode(s)
            if s.list[group_list(s, 0), List.LENGTH] > 0:
                return
        budget = min(budget, room_for_more(s, begun))
        if budget <= 0:
            return
    reserved, room = reserve(s), window_room(s)
    if begun == NOBODY and not (next_fits(s, reserved) and window_fits(s, room, budget)):
        decode(s)
        return
    stand_by(s, 0)
    s.counter[Counter.OWED] = int(s.knobs[DECODES_AFTER])
    if begun != NOBODY:
        reserved += outlook(s, begun)
        s.knobs[EXCESS] += longest_left(s, begun) - outlook(s, begun)
        granted = compute_prompt(s, begun, budget)
        budget -= granted
        room -= window_need(s, granted)
    while budget > 0 and next_fits(s, reserved) and window_fits(s, room, budget):
        request = s.list[0, List.HEAD]
        seat(s, request)
        s.request[request, Request.PARKED] = hold_found(s, request) if caches(s) else 0
        reserved += outlook(s, request)
        s.knobs[EXCESS] += longest_left(s, request) - outlook(s, request)
        granted = compute_prompt(s, request, budget)
        budget -= granted
        room -= window_need(s, granted)
    if caches(s):
        make_room(s, 0)


@kernel
def owes_decodes(s: State) -> bool:
    """Tell whether prompts wait for decodes; those of an engine alone do where somebody does decode."""
    if not parallel(s) and s.list[group_list(s, 0), List.LENGTH] == 0:
        s.counter[Counter.OWED] = 0
    return bool(s.counter[Counter.OWED] > 0)


@kernel
def window_room(s: State) -> int:
    """Free tokens of the pool of windows."""
    return int((s.fixed[Fixed.WINDOWS] - s.counter[Counter.WINDOWED]) * s.fixed[Fixed.BLOCK])


@kernel
def window_need(s: State, tokens: int) -> int:
    """Count the tokens set aside to compute so many of a prompt: whole pages, and a window at least."""
    return int(max(-(-tokens // s.fixed[Fixed.BLOCK]) * s.fixed[Fixed.BLOCK], s.fixed[Fixed.WINDOW]))


@kernel
def window_fits(s: State, room: int, budget: int) -> bool:
    """Tell whether the next in line fits into `room`, computing as much as the budget allows."""
    if not pooled(s):
        return True
    request = s.list[0, List.HEAD]
    whole = sequence(s, request)
    return bool(max(min(whole, budget), s.fixed[Fixed.WINDOW]) <= room)


@kernel
def room_for_more(s: State, request: int) -> int:
    """Count the tokens of a prompt that fit into both pools, once it has freed pages that its window has passed."""
    done = s.request[request, Request.PARKED]
    held = s.blocks[done, Blocks.FILLED]
    of_windows = (
        s.fixed[Fixed.WINDOWS] - s.counter[Counter.WINDOWED] + s.request[request, Request.HOLDS_WINDOWS]
    )
    of_windows += s.blocks[done, Blocks.PASSED] - held
    more = min(s.fixed[Fixed.CAPACITY] - s.counter[Counter.HELD], of_windows)
    return int((held + more) * s.fixed[Fixed.BLOCK] - done)


@kernel
def remember_prompts(s: State) -> None:
    """Put prompt tokens of the last iteration into the tree."""
    request, first = s.list[group_list(s, 0), List.TAIL], NOBODY
    while request != NOBODY and not s.request[request, Request.ENTERED]:
        first, request = request, s.request[request, Request.BEFORE]
    while first != NOBODY:
        enter_tree(
            s,
            first,
            s.request[first, Request.FIRST_WEIGHT] + s.group[0, Group.TICK] - s.request[first, Request.START],
        )
        s.request[first, Request.ENTERED] = True
        first = s.request[first, Request.AFTER]
    begun = s.counter[Counter.PARTLY]
    if begun != NOBODY:
        enter_tree(s, begun, s.request[begun, Request.PARKED])


@kernel
def longest_left(s: State, request: int) -> int:
    """Count the tokens that a request outside the running ones may still generate."""
    return int(
        s.request[request, Request.PROMISE]
        - s.request[request, Request.FIRST_WEIGHT]
        - s.request[request, Request.STAGE]
    )


@kernel
def outlook(s: State, request: int) -> int:
    """Count these, up to `FORESIGHT`."""
    return min(longest_left(s, request), FORESIGHT)


@kernel
def next_fits(s: State, reserved: float) -> bool:
    """Tell whether the next in line fits, its output included, beside what is reserved."""
    request = s.list[0, List.HEAD]
    if request == NOBODY or not seat_is_free(s):
        return False
    whole = sequence(s, request)
    free = s.fixed[Fixed.CAPACITY] - s.counter[Counter.HELD]
    if caches(s):
        whole -= look_up(s, request) * s.fixed[Fixed.BLOCK]
        free -= held_by_nobody(s, request)
    return bool(whole + outlook(s, request) <= free * s.fixed[Fixed.BLOCK] - reserved)


@kernel
def reserve(s: State) -> float:
    """Return the tokens kept for running requests; too few where the excess still counts some that have left.

    A request promised its input and longest output, t tokens of it computed, may generate all but t + 1 of them.
    """
    left = s.counter[Counter.PROMISED] - s.group[0, Group.WEIGHT] - s.list[group_list(s, 0), List.LENGTH]
    if s.counter[Counter.PARTLY] != NOBODY:
        left -= s.request[s.counter[Counter.PARTLY], Request.PROMISE]
    return float((left - s.knobs[EXCESS]) * s.knobs[RATIO])


@kernel
def excess(s: State) -> int:
    """Count the tokens that running requests may still generate beyond what counts of each."""
    beyond = 0
    request = s.list[group_list(s, 0), List.HEAD]
    while request != NOBODY:
        done = members_tokens(s, request, 0) + 1
        beyond += max(s.request[request, Request.PROMISE] - done - FORESIGHT, 0)
        request = s.request[request, Request.AFTER]
    return int(beyond)


@kernel
def decode(s: State) -> None:
    """Compute a token for all who run; retract those who are least far while blocks lack for that."""
    advance(s, 0)
    if caches(s):
        make_room(s, 0)
    if s.counter[Counter.RESIDENT] == 0:
        s.knobs[RATIO] = s.knobs[FIRST_RATIO]
    elif overflows(s):
        while overflows(s):
            retract(s, least_far(s))
            if caches(s):
                make_room_ahead(s)
        s.knobs[RATIO] = ratio_after_retraction(s)
    else:
        s.knobs[RATIO] = max(s.knobs[RATIO] - s.knobs[DECAY], s.knobs[LEAST_RATIO])


@kernel
def make_room_ahead(s: State) -> None:
    """Make room for the blocks that this iteration takes, or for 20 tokens of everybody left, if that is more."""
    taken = s.phase[0, (1 - s.group[0, Group.TICK]) % s.fixed[Fixed.BLOCK]] * s.fixed[Fixed.BLOCK]
    make_room(s, max(_STEPS_AHEAD * s.list[group_list(s, 0), List.LENGTH] - taken, 0))


@kernel
def least_far(s: State) -> int:
    """Find the request with the fewest outputs; of equals the longest input, then the last one."""
    least = request = s.list[group_list(s, 0), List.HEAD]
    while request != NOBODY:
        later = s.request[request, Request.START] - s.request[least, Request.START]
        if later > 0 or (
            later == 0 and s.request[request, Request.FIRST_WEIGHT] >= s.request[least, Request.FIRST_WEIGHT]
        ):
            least = request
        request = s.request[request, Request.AFTER]
    return int(least)


@kernel
def retract(s: State, request: int) -> None:
    """Free a running request's blocks, as `ScheduleBatch.release_req` does; it goes to the end of the queue."""
    preempt(s, request)
    take_out(s, request)
    append(s, s.request[request, Request.QUEUE], request)


@kernel
def ratio_after_retraction(s: State) -> float:
    """Return the tokens generated by those left, and 20 each, as a share of their longest outputs."""
    generated, longest, left = 0, 0, s.list[group_list(s, 0), List.LENGTH]
    request = s.list[group_list(s, 0), List.HEAD]
    while request != NOBODY:
        generated += s.group[0, Group.TICK] - s.request[request, Request.START]
        longest += s.request[request, Request.PROMISE] - s.request[request, Request.FIRST_WEIGHT]
        request = s.request[request, Request.AFTER]
    return float(min((generated + _STEPS_AHEAD * left) / (longest + 1), 1.0))


def prepare(scenario: Scenario, settings: Settings) -> tuple[Setup, dict[str, object]]:
    """Take engine limits from the profile; the longest output of a class is its longest decode length, unless set."""
    conservativeness = settings.number("conservativeness", 1.0)
    if conservativeness < 0:
        raise UsageError(f"sglang.conservativeness = {conservativeness:g}: at least 0")
    max_new = longest_outputs(scenario, settings)
    replica, requests = scenario.model.replica, scenario.requests
    ratio = settings.number(_RATIO, _WINDOW_SHARE)
    if replica.layout is None and settings.numbers(_RATIO) is not None:
        raise UsageError(f"sglang.{_RATIO} = {ratio:g}: the profile has no layers with a window")
    pools = None if replica.layout is None else two_pools(replica.layout, replica.memory_tokens, ratio)
    blocks = replica.memory_tokens // replica.block_tokens if pools is None else pools.blocks
    usable = blocks * replica.block_tokens
    inputs = np.maximum(requests.input_tokens, 1)
    longest = inputs + np.array(max_new, dtype=np.int64)[requests.class_index]
    first, least, decay = ratios(conservativeness)
    engine = scenario.model.engine or Engine()
    every = whole_number(settings, RECEIVE_EVERY_STEPS, engine.receive_every_steps, 1)
    of_profile = engine.prefill_interval if engine.name is EngineName.SGLANG else 1
    interval = whole_number(settings, _INTERVAL, of_profile, 1)
    setup, limits = within_limits(
        *(scenario, settings, first, first, least, decay, 0.0, every, every, interval - 1),
        seats_name=_MOST_RUNNING,
    )
    if every > 1:
        setup = setup._replace(queue_of=np.full_like(setup.queue_of, SENT), queues=2)
    caching = prefix_caching(scenario, settings)
    if caching == Cache.GROUPS:
        raise UsageError(
            "policy sglang: a prefix cache beside layers of several kinds is not modelled; there is vllm, or "
            "prefix_caching = 0"
        )
    if caching and replica.offload is not None:
        raise UsageError(
            "policy sglang: a host tier, [gpu.offload], is not modelled; there is vllm, or prefix_caching = 0"
        )
    setup = setup._replace(
        promise=np.minimum(longest, np.maximum(usable, inputs + 1)),
        prefix_cache=Cache.RADIX_TREE if caching else Cache.NONE,
        capacity_blocks=blocks,
        pools=pools,
        waiting_weighs=0,
    )
    return setup, {
        "conservativeness": conservativeness,
        "max_new": list(max_new),
        "prefix_caching": int(caching > 0),
        **limits,
        **({} if pools is None else {_RATIO: ratio}),
        **({} if every == 1 else {RECEIVE_EVERY_STEPS: every}),
        **({} if interval == 1 else {_INTERVAL: interval}),
    }


def two_pools(layout: KvLayout, memory_tokens: int, ratio: float) -> Pools:
    """Divide the profile's pool into pages of two: the second of windows, with `ratio` times as many tokens."""
    if not 0 < ratio <= 1:
        raise UsageError(f"sglang.{_RATIO} = {ratio:g}: a share of the tokens, above 0 and up to 1")
    sizes = {layer.window for layer in layout.held}
    if {layer.kind for layer in layout.held} != {Attention.FULL, Attention.WINDOW} or len(sizes) != 2:
        raise UsageError(
            "policy sglang: of layers of several kinds, only full attention beside windows of one size is modelled; "
            "there is vllm"
        )
    block = layout.block_tokens
    full, windows = (
        sum(layer.count * layer.bytes for layer in layout.layers if layer.kind is kind)
        for kind in (Attention.FULL, Attention.WINDOW)
    )
    memory = memory_tokens // block * layout.block_bytes
    tokens = int(memory / (full + ratio * windows))
    window = max(layer.window or 0 for layer in layout.layers)
    per_token = layout.block_bytes // layout.block_tokens
    return Pools(
        window, tokens // block, int(tokens * ratio) // block, full * block, windows * block, per_token
    )


def ratios(conservativeness: float) -> tuple[float, float, float]:
    """Return the share of output to come that counts: at first, at least, and its loss in an iteration."""
    first = min(_INITIAL * conservativeness, 1.0)
    least = first * _LEAST
    return first, least, (first - least) / _DECAY_ITERATIONS


_RATIO, _WINDOW_SHARE = "swa_full_tokens_ratio", 0.8
_MOST_RUNNING = "max_running_requests"
RECEIVE_EVERY_STEPS, _INTERVAL = "receive_every_steps", "prefill_interval"

POLICY = Policy(
    name="sglang",
    summary="SGLang's scheduler: room for a share of the output to come, prompts first, least progressed retracted",
    prepare=prepare,
    form_batch=form_batch,
    parameters={
        "conservativeness": "how large that share is, SGLang's --schedule-conservativeness; 1",
        **MAX_NEW,
        "prefix_caching": "1: prompts and answers stay in a radix tree until their room is needed, 0: not; as in [gpu]",
        **PATIENCE,
        _MOST_RUNNING: MOST_RUNNING[SEQUENCES],
        TOKENS: "most tokens of prompts in an iteration; the profile's",
        _RATIO: "tokens of the pool of windows, as a share of the other's, where there are windows; 0.8",
        RECEIVE_EVERY_STEPS: "steps of decodes after which it looks for new requests; the profile's",
        _INTERVAL: "iterations of which one computes prompts, while anything decodes; the profile's",
    },
    engine=True,
    layers=True,
)
