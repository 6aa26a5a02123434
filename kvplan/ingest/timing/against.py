"""Loads as they were measured against what a profile expects of them."""

import math
from collections.abc import Sequence

from kvplan.ingest.timing.belief import NOISE, SPREAD, ends, spread_of
from kvplan.ingest.timing.played import Law, foretold, measured_times
from kvplan.ingest.timing.samples import Sweep
from kvplan.model import Replica
from kvplan.profile.reading import Profile
from kvplan.units import format_number, format_seconds

_MOST = 3  # loads in a note


def compared(sweeps: Sequence[Sweep], profile: Profile, replica: Replica) -> list[str]:
    """Say how times of loads compare with those expected, and whether that is more than was left open."""
    model = profile.model
    band = model.measured.band or ends(SPREAD)
    middle, spread = math.sqrt(band[0] * band[1]), spread_of(band)
    points = [point for sweep in sweeps for point in sweep.points]
    expected = foretold(sweeps, Law(model.timing, model.request_overhead_s), replica)
    said: list[tuple[bool, str]] = []
    for point, times in zip(points, expected, strict=True):
        load = (
            f"{point.concurrency:,} at once" if point.rate_rps is None else f"{point.rate_rps:.3g} requests/s"
        )
        figures, is_off = [], False
        for kind, seconds in measured_times(point):
            least, most = (middle * end for end in ends(math.hypot(spread, NOISE[kind])))
            beyond = not least <= seconds / times[kind] <= most
            is_off |= beyond
            about = f"{format_number(seconds / times[kind])} times the {format_seconds(times[kind])} expected"
            figures.append(
                f"{kind} {format_seconds(seconds)}, {about}{', beyond its interval' if beyond else ''}"
            )
        said.append((not is_off, f"{load}: {'; '.join(figures)}"))
    said.sort(key=lambda each: each[0])  # what is off comes first
    off = bool(said) and not said[0][0]
    why = ": the replica is not what the profile takes it for (GPU, limits, drafts, prompts found in a cache)"
    verdict = f"off by more than is left open{why}" if off else "as expected, within what was left open"
    rest = len(said) - _MOST
    more = [f"{rest} more {'load' if rest == 1 else 'loads'}"] if rest > 0 else []
    return [f"against {profile.source}: {verdict}. {'. '.join([*(text for _, text in said[:_MOST]), *more])}"]
