"""Formulas: pure functions from a serving model to frozen results, one module a topic of the theory.

Results are NamedTuples: a frozen dataclass takes seven times as long to define, and a report needs forty of them.

``equilibrium`` load, sustainable rate, equilibrium, saturation; ``records`` its results; ``cached_equilibrium`` with
a prefix cache; ``concurrency`` how many can run at once without ever being evicted (theory §2)
``fluid_map`` the saturated map and its cycles; ``worst_cycle`` closed forms; ``stability`` and ``roots`` the survival
polynomial (§3) · ``admission`` rate cap, budgets, waits (§4) · ``wait`` with ``worst_window`` (§5)
``nested`` with ``segments``, ``input_spread`` Nested WAIT (§6) · ``overflow`` with ``kv_cumulants``, ``kv_tail``,
``kv_passage``, ``dispersion`` the safety buffer (§7) · ``prefix_cache`` with ``cache_states``, ``cold_cache``,
``population`` (§8, §13) · ``speculative`` drafts (§11) · ``split``, ``fleet`` prefill and decode apart (§12)
``hindsight`` the best of any policy · ``placement`` which classes share a replica
"""
