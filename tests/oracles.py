"""Slow, obvious or exact second opinions on what kvplan computes, written from the papers and not from the code.

Nothing here imports kvplan.analysis: the stage weights come from the table of conventions, the fluid map keeps an
amount of every row in every layer, roots are counted with Sturm chains in integers, queues by their
stationary distribution.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np


def stage_weights(convention: str, input_tokens: int, decode_tokens: int, page: int = 1) -> list[int]:
    """KV tokens of one request in whole pages, iteration by iteration, as theory §1 and §2 have them."""
    if convention == "inline":
        tokens = [input_tokens + k for k in range(decode_tokens + 1)]
    else:
        tokens = [input_tokens + k + 1 for k in range(decode_tokens)]
    return [page * -(-n // page) for n in tokens]


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


@dataclass
class Layer:
    """What was admitted at one time from one source: requests of each row that are still there."""

    age: int
    amount: list


@dataclass
class Step:
    """Requests of each row that completed, were evicted and came in, in an iteration; who returned also came in."""

    completed: list
    evicted: list
    admitted: list
    returned: list


@dataclass
class SlowMap:
    """Saturated greedy admission of amounts; `weights[i][k]` tokens of a request of row i at stage k.

    In flight is a list of layers in the order of admission, the pool of evicted requests a stack of amounts of each
    row. `seats` limits the requests in flight, `cap` those admitted in an iteration. What is less than `nothing` tokens
    counts as none: 0 in fractions, a little where numbers are rounded.
    """

    weights: list[list]
    shares: list
    capacity: object
    layers: list[Layer]
    seats: object = None
    nothing: object = 0
    cap: object = None

    def __post_init__(self) -> None:
        self.pool: list[list] = []

    @classmethod
    def of_cohorts(
        cls,
        weights: list[list],
        shares: list,
        capacity: object,
        masses: Sequence,
        *,
        seats: object = None,
        nothing: object = 0,
    ) -> "SlowMap":
        """Start with a cohort of the traffic at each stage of the longest row, those that have finished left out."""
        layers = [
            Layer(age, [p * masses[age] if age < len(w) else 0 for p, w in zip(shares, weights, strict=True)])
            for age in reversed(range(len(masses)))
            if masses[age] > 0
        ]
        return cls(weights, shares, capacity, layers, seats, nothing)

    def tokens(self, layer: Layer) -> object:
        """KV held by a layer."""
        return sum(n * w[layer.age] for n, w in zip(layer.amount, self.weights, strict=True) if n)

    def weight_of_a_fresh_one(self) -> object:
        """Tokens of a request of the traffic at stage 0."""
        return sum(p * w[0] for p, w in zip(self.shares, self.weights, strict=True))

    def memory(self) -> object:
        """KV tokens held."""
        return sum(self.tokens(layer) for layer in self.layers)

    def in_flight(self) -> object:
        """Requests held."""
        return sum(sum(layer.amount) for layer in self.layers)

    def pooled(self) -> list:
        """Evicted requests that wait, of each row."""
        return [sum(part[i] for part in self.pool) for i in range(len(self.weights))]

    def by_stage(self) -> list[list]:
        """Requests of each row at each of its stages."""
        held = [[0 for _ in w] for w in self.weights]
        for layer in self.layers:
            for i, n in enumerate(layer.amount):
                if n:
                    held[i][layer.age] += n
        return held

    def step(self) -> Step:
        """One iteration: everybody advances, the youngest make room, and who waits comes in."""
        rows = range(len(self.weights))
        completed, evicted, admitted, returned = ([0 for _ in rows] for _ in range(4))
        for layer in self.layers:
            layer.age += 1
            for i in rows:
                if layer.age == len(self.weights[i]):
                    completed[i] += layer.amount[i]
                    layer.amount[i] = 0
        self.layers = [layer for layer in self.layers if any(layer.amount)]
        while self.layers and self.memory() > self.capacity + self.nothing:
            layer = self.layers[-1]
            excess, held = self.memory() - self.capacity, self.tokens(layer)
            gone = list(layer.amount) if held <= excess else [n * (excess / held) for n in layer.amount]
            layer.amount = [n - x for n, x in zip(layer.amount, gone, strict=True)]
            if held <= excess:
                self.layers.pop()
            self.pool.append(gone)
            evicted = [n + x for n, x in zip(evicted, gone, strict=True)]
        while not any(evicted):  # an iteration that evicts admits nothing
            source = self.pool[-1] if self.pool else self.shares
            weight = sum(n * w[0] for n, w in zip(source, self.weights, strict=True))
            room = self.capacity - self.memory()
            if room <= self.nothing:
                break
            part = room / weight
            free = [
                limit - n for limit, n in ((self.seats, self.in_flight()), (self.cap, sum(admitted))) if limit
            ]
            if any(more * self.weight_of_a_fresh_one() <= self.nothing for more in free):
                break
            part = min([part, *(more / sum(source) for more in free)])
            if self.pool:
                part = min(part, 1)
                self.pool.pop()
                if part < 1:
                    self.pool.append([n * (1 - part) for n in source])
            come = [n * part for n in source]
            if source is not self.shares:
                returned = [n + x for n, x in zip(returned, come, strict=True)]
            self.layers.append(Layer(0, come))
            admitted = [n + x for n, x in zip(admitted, come, strict=True)]
        return Step(completed, evicted, admitted, returned)


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
