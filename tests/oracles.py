"""Slow, obvious or exact second opinions on what kvplan computes, written from the papers and not from the code.

Nothing here imports kvplan.analysis: the stage weights come from the table of conventions, the fluid map moves an
amount of every class from stage to stage, roots are counted with Sturm chains in integers, queues by their
stationary distribution.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

CONVENTIONS = ("disaggregated", "inline", "fused")


# -- stage weights ----------------------------------------------------------------------------------------------


def stage_weights(convention: str, input_tokens: int, decode_tokens: int) -> list[int]:
    """KV tokens of one request, iteration by iteration, as theory §1 tabulates them."""
    if convention == "inline":
        return [input_tokens + k for k in range(decode_tokens + 1)]
    return [input_tokens + k + 1 for k in range(decode_tokens)]


def survival_polynomial(rows: Sequence[tuple[Sequence[Fraction | int], Fraction]]) -> list[int]:
    """Integers proportional to W_k = Σ p_i w_i(k), highest power of P(z) first; rows are (weights, share)."""
    longest = max(len(weights) for weights, _ in rows)
    terms = [
        sum((p * Fraction(weights[k]) for weights, p in rows if k < len(weights)), Fraction(0))
        for k in range(longest)
    ]
    return _primitive(terms)


# -- exact root counts ------------------------------------------------------------------------------------------
#
# Polynomials here are lists of integers, lowest power first, without leading zeros.


@dataclass(frozen=True)
class RootCount:
    """Roots inside, on and outside the unit circle, with multiplicity."""

    inside: int
    on: int
    outside: int


def count_roots(coefficients: Sequence[int]) -> RootCount:
    """Count roots against the unit circle, exactly; highest power first, positive coefficients.

    z = (v + 1)/(v - 1) carries the circle to the imaginary axis and the outside to the right half plane (z = 1,
    carried to infinity, is no root of a polynomial with positive coefficients). The common factor of q(v) and
    q(-v) holds every root on the axis, and pairs that mirror each other; the rest is counted by the Cauchy index
    of its imaginary over its real part on the axis, a Sturm chain.
    """
    degree = len(coefficients) - 1
    q: list[int] = []
    plus, minus = _powers([1, 1], degree), _powers([-1, 1], degree)
    for k, c in enumerate(coefficients):
        q = _add(q, [c * x for x in _product(plus[degree - k], minus[k])])
    assert len(q) == degree + 1
    mirrored = _gcd(q, [c * (-1) ** k for k, c in enumerate(q)])
    rest = _exact_quotient(q, mirrored)
    at_zero = next(k for k, c in enumerate(mirrored) if c != 0)  # v = 0 is z = -1
    even = mirrored[at_zero:]
    assert not any(even[1::2])
    # v² = u: roots on the axis are real u < 0, two values of v each; u = 0 has been taken out
    on = at_zero + 2 * sum(_negative_roots(factor) for factor in _multiplicity_layers(even[::2]))
    right = _right_half_plane(rest) + (len(mirrored) - 1 - on) // 2
    return RootCount(inside=degree - on - right, on=on, outside=right)


def _right_half_plane(h: list[int]) -> int:
    """Roots with positive real part of a polynomial without roots on the imaginary axis."""
    degree = len(h) - 1
    if degree == 0:
        return 0
    # h(iy) = A(y) + i·B(y)
    real = _trim([c * (1, 0, -1, 0)[k % 4] for k, c in enumerate(h)])
    imaginary = _trim([c * (0, 1, 0, -1)[k % 4] for k, c in enumerate(h)])
    # arg h turns by π(left - right) as y goes up the axis, by -π times the index of B/A, or +π times that of A/B
    difference = (
        -_cauchy_index(real, imaginary) if len(real) > len(imaginary) else _cauchy_index(imaginary, real)
    )
    return (degree - difference) // 2


def _cauchy_index(denominator: list[int], numerator: list[int]) -> int:
    """Jumps of numerator/denominator from -∞ to +∞ less those from +∞ to -∞, over the real line."""
    return _variations_lost(_sturm_chain(denominator, numerator))


def _variations_lost(chain: list[list[int]], upper: int | None = None) -> int:
    """Sign changes at -∞ less those at +∞, or at zero where `upper` is 0."""
    below = [p[-1] * (-1) ** (len(p) - 1) for p in chain]
    above = [p[-1] if upper is None else p[0] for p in chain]
    return _sign_changes(below) - _sign_changes(above)


def _sign_changes(values: Sequence[int]) -> int:
    signs = [v > 0 for v in values if v != 0]
    return sum(a != b for a, b in pairwise(signs))


def _sturm_chain(first: list[int], second: list[int]) -> list[list[int]]:
    chain = [first]
    while second:
        chain.append(second)
        first, second = second, [-c for c in _remainder(first, second)]
    return chain


def _negative_roots(p: list[int]) -> int:
    """Distinct real roots below zero of a polynomial with p(0) != 0, by Sturm's theorem."""
    return _variations_lost(_sturm_chain(p, _derivative(p)), upper=0) if len(p) > 1 else 0


def _multiplicity_layers(p: list[int]) -> Iterator[list[int]]:
    """Polynomials with simple roots: those of p, those of p at least double, and so on."""
    while len(p) > 1:
        repeated = _gcd(p, _derivative(p))
        yield _exact_quotient(p, repeated)
        p = repeated


def _powers(p: list[int], highest: int) -> list[list[int]]:
    powers = [[1]]
    for _ in range(highest):
        powers.append(_product(powers[-1], p))
    return powers


def _product(a: list[int], b: list[int]) -> list[int]:
    out = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out


def _add(a: list[int], b: list[int]) -> list[int]:
    size = max(len(a), len(b))
    return _trim([(a[k] if k < len(a) else 0) + (b[k] if k < len(b) else 0) for k in range(size)])


def _derivative(p: list[int]) -> list[int]:
    return [k * c for k, c in enumerate(p)][1:]


def _trim(p: list[int]) -> list[int]:
    while p and p[-1] == 0:
        p = p[:-1]
    return p


def _remainder(a: list[int], b: list[int]) -> list[int]:
    """A positive multiple of the remainder of a by b, without common factors."""
    a = list(a)
    while len(a) >= len(b):
        lead, shift = a[-1], len(a) - len(b)
        scale, sign = abs(b[-1]), 1 if b[-1] > 0 else -1
        a = [scale * c for c in a]
        for k, c in enumerate(b):
            a[k + shift] -= sign * lead * c
        assert a[-1] == 0
        a = _trim(a)
    return _primitive(a)


def _gcd(a: list[int], b: list[int]) -> list[int]:
    a, b = _primitive(_trim(a)), _primitive(_trim(b))
    while b:
        a, b = b, _remainder(a, b)
    return a


def _exact_quotient(a: list[int], b: list[int]) -> list[int]:
    rest = [Fraction(c) for c in a]
    quotient = [Fraction(0)] * (len(a) - len(b) + 1)
    for shift in range(len(a) - len(b), -1, -1):
        quotient[shift] = rest[shift + len(b) - 1] / b[-1]
        for k, c in enumerate(b):
            rest[k + shift] -= quotient[shift] * c
    assert not any(rest)
    return _primitive(quotient)


def _primitive(p: Sequence[Fraction | int]) -> list[int]:
    fractions = [Fraction(c) for c in p]
    if not any(fractions):
        return []
    denominator = math.lcm(*(c.denominator for c in fractions))
    whole = [int(c * denominator) for c in fractions]
    content = math.gcd(*whole)
    return [c // content for c in whole]


# -- the fluid map, class by class and stage by stage ------------------------------------------------------------


@dataclass
class SlowMap:
    """Saturated greedy admission: `amount[i][k]` requests of class i at stage k, moved one stage at a time.

    `weights[i][k]` tokens each; `shares[i]` of what is admitted; `cap` limits the requests admitted per iteration.
    Works in floats or in fractions, whatever it is given.
    """

    weights: list[list]
    shares: list
    capacity: object
    amount: list[list]
    cap: object = None

    @classmethod
    def of_cohorts(cls, weights: list[list], shares: list, capacity: object, masses: Sequence) -> "SlowMap":
        """Start with aggregate cohort masses, one for each stage of the longest class."""
        amount = [[p * masses[k] for k in range(len(w))] for w, p in zip(weights, shares, strict=True)]
        return cls(weights, shares, capacity, amount)

    def memory(self) -> object:
        """KV tokens held."""
        return sum(
            n * w
            for row, ws in zip(self.amount, self.weights, strict=True)
            for n, w in zip(row, ws, strict=True)
        )

    def in_flight(self) -> object:
        """Requests held."""
        return sum(sum(row) for row in self.amount)

    def step(self) -> tuple:
        """One iteration; returns the requests completed, evicted and admitted, class by class."""
        classes = range(len(self.weights))
        completed = [self.amount[i][-1] for i in classes]
        for i in classes:
            self.amount[i] = [0, *self.amount[i][:-1]]
        evicted = [0 for _ in classes]
        stage = 0
        while self.memory() > self.capacity and stage < max(len(w) for w in self.weights):
            excess = self.memory() - self.capacity
            here = [i for i in classes if stage < len(self.weights[i])]
            held = sum(self.amount[i][stage] * self.weights[i][stage] for i in here)
            for i in here:
                cut = self.amount[i][stage] if held <= excess else self.amount[i][stage] * (excess / held)
                self.amount[i][stage] -= cut
                evicted[i] += cut
            stage += 1
        admitted = [0 for _ in classes]
        room = self.capacity - self.memory()
        if not any(evicted) and room > 0:
            total = room / sum(p * w[0] for p, w in zip(self.shares, self.weights, strict=True))
            if self.cap is not None:
                total = min(total, self.cap)
            for i in classes:
                admitted[i] = self.shares[i] * total
                self.amount[i][0] = admitted[i]
        return completed, evicted, admitted


# -- queues ------------------------------------------------------------------------------------------------------


def stationary_mean_queue(arrivals: float, budget: int, size: int) -> float:
    """E[Q] of Q' = (Q + Poisson(arrivals) - budget)⁺ from its stationary distribution, cut off at `size`."""
    n = np.arange(size + budget + 1)
    log_factorial = np.array([math.lgamma(k + 1) for k in n])
    pmf = np.exp(n * math.log(arrivals) - arrivals - log_factorial)
    arriving = np.arange(size)[None, :] - np.arange(size)[:, None] + budget  # to go from a row to a column
    transition = np.where(arriving >= 0, pmf[np.maximum(arriving, 0)], 0.0)
    transition[:, 0] = [pmf[: max(0, budget - q + 1)].sum() for q in range(size)]
    transition[:, -1] += np.maximum(0.0, 1 - transition.sum(axis=1))
    # π(P - I) = 0 with Σπ = 1 in place of one equation
    system = (transition - np.eye(size)).T
    system[0] = 1.0
    target = np.zeros(size)
    target[0] = 1.0
    return float(np.linalg.solve(system, target) @ np.arange(size))
