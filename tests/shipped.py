"""The shipped profiles and their reports, each made once in a process for all tests that look at them."""

from functools import cache
from io import BytesIO

from kvplan.profile.reading import Profile, load_profile, shipped_profiles
from kvplan.report.assembly import Report, analyze

NAMES = sorted(shipped_profiles())


@cache
def profile(name: str) -> Profile:
    return load_profile(name, stdin=BytesIO())


@cache
def report(name: str) -> Report:
    given = profile(name)
    return analyze(given.model, name=given.name, sha256=given.sha256, plan=given.plan)
