"""How many requests can run at once without ever being evicted, whatever their lengths and however they meet.

Greedy admission may fill all blocks, and a request holds s + d tokens in the end. vLLM keeps a block for itself, and
computes no KV of a last token: where the blocks of the longest requests fill memory exactly, it evicts and greedy
admission does not. What is said of engines has to hold for both.
"""

from kvplan.model import RequestClass, ServingModel

RESERVED_BLOCKS = 1  # that vLLM keeps of its pool


def eviction_free_limit(model: ServingModel) -> int:
    """Count the longest requests that fit in memory together (new, theory §3), of each rank and so of all."""
    return model.replica.ranks * (_blocks(model) // longest_blocks(model))


def engine_max_num_seqs(model: ServingModel) -> int:
    """Concurrency at which no engine ever evicts: the same, also in the blocks that vLLM has (new, theory §4)."""
    fit = model.replica.ranks * ((_blocks(model) - RESERVED_BLOCKS) // computed_blocks(model))
    return min(eviction_free_limit(model), fit)


def longest_blocks(model: ServingModel) -> int:
    """Count the blocks that any request holds at most."""
    return max(_blocks_held(model, c, c.max_tokens) for c in model.classes)


def computed_blocks(model: ServingModel) -> int:
    """Count them in vLLM, which never computes the last token."""
    return max(_blocks_held(model, c, max(c.max_tokens - 1, c.decode_tokens[-1])) for c in model.classes)


def all_fit(model: ServingModel) -> bool:
    """Tell whether as many of the longest requests as run at once fit in memory (new, theory §3)."""
    limit = model.replica.max_num_seqs
    return limit is not None and limit <= eviction_free_limit(model)


def never_grows(model: ServingModel) -> bool:
    """Tell whether no request ever holds more memory than when it was admitted."""
    return not model.mix.held.grows


def eviction_is_impossible(model: ServingModel) -> bool:
    """Tell whether greedy admission can never evict (new, theory §3)."""
    return all_fit(model) or never_grows(model)


def engine_never_evicts(model: ServingModel) -> bool:
    """Tell whether no engine can evict, vLLM with its reserved block included (new, theory §4)."""
    limit = model.replica.max_num_seqs
    return limit is not None and limit <= engine_max_num_seqs(model)


def _blocks(model: ServingModel) -> int:
    """Blocks of one rank."""
    return model.replica.memory_tokens // model.replica.ranks // model.replica.block_tokens


def _blocks_held(model: ServingModel, c: RequestClass, last: int) -> int:
    """Blocks that the longest request of a class holds at most, which has `last` tokens at its end."""
    replica, slots = model.replica, 0 if model.drafts is None else model.drafts.slots
    first = max(last - c.decode_tokens[-1], 0) + 1
    return max(replica.largest_held(min(first, last), last, slots) // replica.block_tokens, 1)
