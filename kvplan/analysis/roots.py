r"""Largest root and certified root counts of long polynomials with positive coefficients.

A polynomial is given by its coefficients ``w``, highest power first: P(z) = Σ_k w_k z^(L-1-k), all w_k > 0.
Companion-matrix eigenvalues cost O(L³) and carry no proof. Here everything is read off a circle |z| = r,
where F(θ) = Σ_k w_k r^-k e^(-ikθ) winds once clockwise for every root *outside*:

* `count_outside` counts those windings rigorously. A few FFTs give Taylor polynomials of F on small arcs; their
  tail and the rounding of the FFT are bounded, so on every arc F provably stays in a half plane, once the arcs
  that pass near a root have been halved often enough. Where the bounds do not suffice the answer is None, never
  a guess. Where all ratios of neighbouring coefficients are below r, or all above, no circle is needed: every root is
  inside, or every one outside (Eneström-Kakeya).
* `largest_root` brackets the spectral radius between radii with and without roots outside, finds the roots
  near a circle by Newton steps on the same Taylor polynomials, and proves that none lies further out. In long
  polynomials the first circle is where the turns between samples, which prove nothing, say that the roots end.

References: new, theory §3 ("Numerics"); the winding count is the argument principle.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray

ComplexArray = NDArray[np.complex128]

MOST = 1 << 17  # coefficients; longer polynomials would take longer than anybody waits
_SUMS = 1 << 14  # of their coefficients, from which the largest root is estimated
_LONG = 1 << 14  # coefficients, above which it costs less to guess where to look first
_MIN_TOLERANCE = 1e-10  # relative half width of the bracket that certifies a modulus ...
_TOLERANCE_PER_COEFFICIENT = 1e-11  # ... wider for long polynomials, whose roots crowd together
_UNDECIDED = 1e-6  # relative, to which a modulus is found that cannot be certified
_ORDER = 14  # Taylor coefficients an arc; the tail (π/8)^14/14! is 2e-17 of Σw
_SAMPLES_PER_COEFFICIENT = 4
_NEWTON_REACH = 2.0  # half widths of an arc within which its Taylor polynomial is trusted
_MAX_HALVINGS = 48
_SEARCH_HALVINGS = 6  # the search only needs to know on which side of a circle the roots are
_MAX_NEWTON = 30
_MAX_SEARCH = 60
_MOST_WORK = 3 * 10**11  # products of bits, in exact arithmetic: about a second
_EPS = float(np.finfo(np.float64).eps)
_LARGEST_LOG = 1400.0  # of a factor, of which half can be had as a float


class LargestRoot(NamedTuple):
    """A spectral radius, and whether it is proved: a root of that modulus to 1e-10, none further out."""

    modulus: float
    certified: bool


class Arcs(NamedTuple):
    """Taylor polynomials of e^(i·middle·θ) Σ_k c_k e^(-ikθ) on equal arcs, which together cover θ in [0, π].

    At θ = center + t·half_width, for real t in [-1, 1], the value is Σ_m taylor[m] t^m to within `tail`, and
    hardly worse up to |t| = 2. The factor e^(i·middle·θ) halves the bandwidth, so the derivatives stay small.
    `center` has shape (n_arcs,), `taylor` (order, n_arcs).
    """

    center: FloatArray
    half_width: float
    taylor: ComplexArray
    tail: float


def expand_on_circle(coefficients: FloatArray) -> Arcs:
    """Expand Σ_k c_k e^(-ikθ), coefficients of shape (L,), in Taylor polynomials, one FFT for each order."""
    size = coefficients.size
    n = _samples(size)
    half_width = math.pi / n
    middle = _middle(size)
    step = (np.arange(size) - middle) * half_width
    taylor = np.empty((_ORDER, n // 2 + 1), dtype=np.complex128)
    padded = np.zeros(n)
    term = coefficients
    for m in range(_ORDER):
        padded[: size - middle] = term[middle:]
        padded[n - middle :] = term[:middle]
        taylor[m] = np.fft.rfft(padded)
        taylor[m] *= (1, -1j, -1, 1j)[m % 4]
        term = term * step / (m + 1)
    center = np.arange(n // 2 + 1, dtype=np.float64) * (2 * half_width)
    return Arcs(center, half_width, taylor, 1.1 * float(np.abs(term).sum()))


def _samples(size: int) -> int:
    """Points of a circle that an FFT takes for so many coefficients."""
    return 1 << max(6, math.ceil(math.log2(_SAMPLES_PER_COEFFICIENT * size)))


def _on_radius(w: FloatArray, radius: float, relative_error: float) -> tuple[Arcs, float]:
    """Expand w_k r^-k, scaled to a largest coefficient of 1, with a bound on the error of its values."""
    scaled, shift = _scaled(w, radius)
    arcs = expand_on_circle(scaled)
    digits = 8 * math.log2(arcs.center.size) + abs(shift) + w.size * abs(math.log(radius)) + 16
    return arcs, arcs.tail + 2 * (digits * _EPS + relative_error) * float(scaled.sum())


def _scaled(w: FloatArray, radius: float) -> tuple[FloatArray, float]:
    """w_k r^-k over the largest of them, and the logarithm of that."""
    decay = -np.arange(w.size) * math.log(radius)
    shift = float((np.log(w) + decay).max())
    half = np.exp(np.minimum(decay - shift, _LARGEST_LOG) / 2)  # which is a float, where the whole may not be
    return w * half * half, shift


def _middle(size: int) -> int:
    return (size - 1) // 2


def _halving_matrices(order: int) -> tuple[FloatArray, FloatArray]:
    """Maps from the Taylor coefficients of an arc to those of its left and right halves."""
    left, right = np.zeros((order, order)), np.zeros((order, order))
    for m in range(order):
        for j in range(m, order):
            right[m, j] = math.comb(j, m) * 0.5**j
            left[m, j] = right[m, j] * (-1) ** (j - m)
    return left, right


def count_outside(w: FloatArray, radius: float = 1.0, *, relative_error: float = 0.0) -> int | None:
    """Count the roots of modulus greater than `radius`, proved; None where rounding forbids a proof.

    None also when a root lies on the circle, and beyond `MOST` coefficients that do not all fall or rise. `w`, of shape
    (L,), are positive coefficients, highest power first; the count holds for every polynomial within `relative_error`
    of each.

    >>> count_outside(np.array([2.0, 5.0, 2.0]))  # roots -2 and -1/2
    1
    """
    if w.size == 1:
        return 0
    ratios = w[1:] / w[:-1]
    slack = 1 + 3 * relative_error + 4 * _EPS
    if ratios.max() * slack < radius:
        return 0
    if ratios.min() > radius * slack:
        return w.size - 1
    if w.size > MOST:
        return None
    return _count_outside(*_on_radius(w, radius, relative_error), _middle(w.size))


def _count_outside(arcs: Arcs, error: float, middle: int, max_halvings: int = _MAX_HALVINGS) -> int | None:
    """Halve arcs until F keeps to a half plane on each, then add up its turns."""
    left, right = _halving_matrices(_ORDER)
    center, half_width, taylor = arcs.center, arcs.half_width, arcs.taylor
    ends = np.array([0.0, math.pi])
    centers, values = [ends], [taylor[0, [0, -1]]]
    for _ in range(max_halvings):
        clear = np.abs(taylor[1:]).sum(axis=0) + error < np.abs(taylor[0])
        centers.append(center[clear])
        values.append(taylor[0, clear])
        if clear.all():
            theta, value = np.concatenate(centers), np.concatenate(values)
            value = value[np.argsort(theta, kind="stable")]
            half_turns = float(np.angle(value[1:] * np.conj(value[:-1])).sum()) / math.pi
            return middle - round(half_turns)
        half_width /= 2
        center, taylor = center[~clear], taylor[:, ~clear]
        if center.size > arcs.center.size // 2:  # more near-roots than a proof is worth
            return None
        center = np.concatenate([center - half_width, center + half_width])
        taylor = np.concatenate([left @ taylor, right @ taylor], axis=1)
        inside = (center >= 0) & (center <= math.pi)
        center, taylor = center[inside], taylor[:, inside]
    return None


def _roots_near(arcs: Arcs, radius: float) -> ComplexArray:
    """Roots of the upper half plane within reach of the circle, by Newton steps on the Taylor polynomials."""
    near = np.abs(arcs.taylor[0]) <= _NEWTON_REACH * np.abs(arcs.taylor[1])
    center, taylor = arcs.center[near], arcs.taylor[:, near]
    t = np.zeros(taylor.shape[1], dtype=np.complex128)
    for _ in range(_MAX_NEWTON):
        value, slope = taylor[-1], np.zeros_like(t)
        for coefficient in taylor[-2::-1]:
            slope = slope * t + value
            value = value * t + coefficient
        step = np.divide(value, slope, out=np.full_like(t, np.inf), where=slope != 0)
        moved = t - step
        keep = np.abs(moved) <= _NEWTON_REACH
        t, center, taylor, step = moved[keep], center[keep], taylor[:, keep], step[keep]
        if t.size == 0 or np.abs(step).max() < 1e-13:
            break
    converged = np.abs(step) < 1e-9 if t.size else np.zeros(0, dtype=bool)
    log_root = 1j * (center[converged] + arcs.half_width * t[converged])
    roots: ComplexArray = radius * np.exp(log_root)
    return roots


def largest_root(w: FloatArray, *, relative_error: float = 0.0) -> LargestRoot:
    """Spectral radius: the largest modulus of a root; arguments as of `count_outside`.

    0, certified, for L = 1, which has no roots. Beyond `MOST` coefficients an estimate, from sums of neighbouring ones:
    roots near the real axis hardly move.
    """
    if w.size == 1:
        return LargestRoot(0.0, certified=True)
    if w.size > MOST:
        group = -(-w.size // min(MOST, _SUMS))
        sums = np.add.reduceat(w, np.arange(0, w.size, group))
        return LargestRoot(largest_root(sums).modulus ** (1 / group), certified=False)
    # The geometric mean of the moduli and the Eneström-Kakeya bound enclose the answer.
    low = math.exp((math.log(w[-1]) - math.log(w[0])) / (w.size - 1))
    high = float((w[1:] / w[:-1]).max())
    tolerance = max(_MIN_TOLERANCE, _TOLERANCE_PER_COEFFICIENT * w.size)
    radius = min(max(1.0, low), high) if w.size <= _LONG else _guess(w, low, high)
    stride = 2 / w.size  # roots crowd within a few 1/L of the largest: gallop from the start, do not bisect
    largest, narrow, undecided = low, _MIN_TOLERANCE, 0.0
    for _ in range(_MAX_SEARCH):
        arcs, error = _on_radius(w, radius, relative_error)
        outside = _count_outside(arcs, error, _middle(w.size), _SEARCH_HALVINGS)
        moduli = np.abs(_roots_near(arcs, radius))
        largest = float(moduli.max(initial=largest))
        # Each root found stands for itself and its conjugate: if fewer than are outside, some lie further out.
        all_found = outside is None or 2 * np.count_nonzero(moduli > radius) >= outside
        if moduli.size and all_found and largest > undecided:
            beyond = count_outside(w, largest * (1 + tolerance), relative_error=relative_error)
            if beyond == 0:
                within = count_outside(w, largest * (1 - tolerance), relative_error=relative_error)
                return LargestRoot(largest, certified=within is not None and within > 0)
            if beyond is None:  # errors of the coefficients do not let it be proved, however close one looks
                narrow, undecided = _UNDECIDED, largest * (1 + tolerance)
            low = max(low, largest)
        if outside is None:  # roots on the circle that Newton did not find, double ones say: look closer
            outside = _count_outside(arcs, error, _middle(w.size))
        if outside == 0:
            high = min(high, radius)
            radius = max(high * math.exp(-stride), math.sqrt(low * high))
        else:
            if outside:
                low = max(low, radius)
            radius = min(low * math.exp(stride), math.sqrt(low * high))
        stride = min(2 * stride, 1.0)
        if high <= low * (1 + narrow):
            break
    return LargestRoot(largest if largest >= low else math.sqrt(low * high), certified=False)


def _guess(w: FloatArray, low: float, high: float) -> float:
    """Guess a radius near the largest modulus from turns between samples: one FFT a circle, and no proof."""
    while high > low * (1 + 0.5 / w.size):
        radius = math.sqrt(low * high)
        values = np.fft.rfft(_scaled(w, radius)[0], _samples(w.size))
        half_turns = float(np.angle(values[1:] * np.conj(values[:-1])).sum()) / math.pi
        if round(half_turns):
            low = radius
        else:
            high = radius
    return high


@lru_cache(maxsize=64)  # more memory or traffic of the same mix has the same ones
def all_inside_exact(coefficients: tuple[int, ...]) -> bool | None:
    """Decide in integers whether every root lies strictly inside the unit circle, the highest power first, positive.

    Integers grow as the polynomial shrinks: None where that would take longer than seconds.

    References
    ----------
    Schur-Cohn: all roots of P are inside iff |p_n| > |p_0| and all roots of (p_n P - p_0 P*)/z are.

    Examples
    --------
    >>> all_inside_exact((4, 1, 1)), all_inside_exact((2, 3, 2))  # the latter has both roots on the circle
    (True, False)
    """
    c, work = list(coefficients), 0
    while len(c) > 1:
        lead, last = c[0], c[-1]
        if abs(lead) <= abs(last):
            return False
        work += len(c) * lead.bit_length() ** 2
        if work > _MOST_WORK:
            return None
        c = [lead * x - last * y for x, y in zip(c[:-1], c[:0:-1], strict=True)]
        content = math.gcd(*c)
        c = [x // content for x in c]
    return True
