"""How far numbers may go that a profile, an option or a file says: what a person or a machine plausibly writes.

Whoever reads them refuses what lies beyond in one line, so that nothing downstream has to be ready for it.
"""

LEAST_RATE, MOST_RATE = 1e-9, 1e9  # requests or sessions, per second
SHORTEST_S, LONGEST_ITERATION_S = 1e-9, 3600.0  # of an iteration, and of what a request spends outside of it
LEAST_PAIR_S, LONGEST_PAIR_S = 1e-15, 1e-4  # of attention, per pair of tokens: some nanoseconds on a GPU
LEAST_COST_S = 1e-12  # per token: 8 B300 read a token of MLA in fp8, 35 kB, in half a nanosecond
LONGEST_S = 3.2e8  # ten years: horizons, gaps, schedules
LATEST_S = 1e12  # of a time stamp: since 1970, in milliseconds too
LEAST_WEIGHT, MOST_WEIGHT = 1e-9, 1e9  # weights, shares (up to 1), prices
LEAST_DELTA = 1e-12  # what the methods say nothing below
MAX_TOKENS = 10**7  # of a prompt
MAX_DECODE_TOKENS = 10**6
MAX_MEMORY_TOKENS = 10**8  # of a replica: 8 B300 hold some 45 million of an MLA model with an fp8 cache
MAX_CACHE_TOKENS = 10**10  # of a host tier or a hit curve, which hosts can share
MAX_BLOCK_TOKENS = 10**6
MAX_GPUS = 10_000  # of a replica
MOST_REPLICAS = 10_000  # of a fleet
MOST_CLASSES = 1000  # so that a report takes seconds; traces are fitted with a few
MOST_DRAFTS = 100
MOST_STEPS = 10_000  # that an engine lets requests wait
MAX_SOURCE = 300  # characters that say where a part of a profile comes from
