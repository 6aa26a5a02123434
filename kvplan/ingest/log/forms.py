"""The forms in which an engine's log states what it holds and what limits it."""

import re
from typing import NamedTuple

BLOCK, SEQS, BATCHED = "block_tokens", "max_num_seqs", "max_num_batched_tokens"
TP, PP = "tensor_parallel", "pipeline_parallel"
UNIFIED = "unified"  # the line that says so
NUMBER = r"(-?\d[\d,]*)"


class Capacity(NamedTuple):
    """A statement of a KV capacity; the first group of `form` is the number, of tokens unless `in_blocks`.

    `of_pool` is that of one pool, of which a rank can have several; a total counts before it.
    """

    form: re.Pattern[str]
    in_blocks: bool = False
    of_pool: bool = False


class EngineLog(NamedTuple):
    """What one engine logs when it starts.

    Attributes
    ----------
    looked_for
        Its statements of a capacity, as a message lists them.
    words
        A line without any of these says nothing; looking for them is far cheaper than the expressions.
    limits : tuple of (str, pattern)
        Limits by name, the number being the first group; of two in a line the later one in this list counts.
    start
        An expression for the line that begins a start; empty where there is none.
    limits_follow
        Limits come after the capacity too.
    hit_rate : pattern or None
        Percent of the prompt tokens that the prefix cache found, stated time and again.
    computed_and_found : pattern or None
        Prompt tokens of a batch, those computed and those found.
    concurrency : pattern or None
        A length in tokens and how many requests of it fit, said right after the capacity.
    accepted : pattern or None
        Tokens drafted since the last such line, and the share of drafts accepted at each position.
    unified : pattern or None
        Layers of several kinds are all given the memory of full attention.
    block_tokens
        Of a block, where the log does not say.
    """

    engine: str
    looked_for: str
    words: tuple[str, ...]
    capacities: tuple[Capacity, ...]
    limits: tuple[tuple[str, re.Pattern[str]], ...] = ()
    start: str = ""
    limits_follow: bool = False
    hit_rate: re.Pattern[str] | None = None
    computed_and_found: re.Pattern[str] | None = None
    concurrency: re.Pattern[str] | None = None
    accepted: re.Pattern[str] | None = None
    unified: re.Pattern[str] | None = None
    block_tokens: int = 1


def argument(name: str) -> re.Pattern[str]:
    """``name=1``, ``'name': 1``, ``--name 1``; not as the end of a longer name.

    Examples
    --------
    >>> [bool(argument("block_size").search(text)) for text in ("--block-size 32", "mamba_block_size=64")]
    [True, False]
    """
    return re.compile(rf"(?<![\w-])(?:--)?{name.replace('_', '[_-]')}['\"]?\s?[:= ]\s?['\"]?(\d+)")


def whole(digits: str) -> int:
    """A number with thousands separators; one too long to be meant is only known to be large."""
    plain = digits.replace(",", "")
    return int(plain) if len(plain) <= 18 else 10**18
