"""The formulas: pure functions from a serving model to frozen results.

Results are NamedTuples: a frozen dataclass takes seven times as long to define, and a report needs forty of them.

``equilibrium``  load, sustainable rate, equilibrium, saturation      theory §2
``batch``        the same for many models at once
``fluid_map``    the saturated fluid map and the cycles it settles on theory §3
``worst_cycle``  closed-form cycles, and which one greedy can be stuck in
``stability``    survival polynomial: spectral radius, minimum input, advice
``roots``        certified root counts of polynomials with positive coefficients
``concurrency``  how many can run at once without ever being evicted
``admission``    rate cap, integer budgets, exact mean waits          theory §4
``wait``         WAIT thresholds, known decode lengths                theory §5
``segments``     segmentations of decode lengths, thresholds that keep up  theory §6
``input_spread`` what inputs that differ add up to, Chernoff's bound
``nested``       Nested WAIT: required memory
``overflow``     probability of overflow, safety buffer               theory §7
``kv_cumulants`` cumulants of KV usage, feedback included
``kv_tail``      tail of KV usage: saddlepoint, exact pmf
``latency``      TTFT, ITL and E2E below saturation            theory §9
``prefix_cache`` hits, guaranteed and good rate, collapse             theory §8
``split``        prefill and decode apart, or together           theory §12
``cache_states`` the one curve that all states of a prefix cache lie on
"""
