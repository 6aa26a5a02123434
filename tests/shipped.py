"""The shipped profiles and their reports, each made once in a session for all tests that look at them."""

import os
import pickle
from functools import cache
from io import BytesIO
from pathlib import Path

from tiers import is_night

from kvplan.profile.reading import Profile, load_profile, shipped_profiles
from kvplan.report import figures
from kvplan.report.assembly import Report, analyze

NAMES = sorted(shipped_profiles())
ON_A_COMMIT = (  # of each kind, those whose reports are soonest made, and those that are kept
    "agents-brief",
    "azure-conv-overloaded",
    "eagle-3-h100",
    "gemma-3-27b-h100",
    "llama-3.1-8b-rtx4090",
    "paper-fc-budgets",
    "paper-sic-limit-cycle",
    "split-brief",
)
BRIEF = {  # shipped ones, of which what is written otherwise leaves seconds of runs instead of half a minute
    "agents-brief": (  # nobody asks how soon a burst is over
        "agents-collapse",
        {"[[sessions]]": '[plan]\nrecover = "never"\n\n[[sessions]]'},
    ),
    "split-brief": (
        "prefill-decode",
        {
            "prefill = 5": "prefill = 2",
            "decode = 3": "decode = 1",
            "input = 2000": "input = 500",
            "decode = 200": "decode = 50",
            "rate = 60.0": "rate = 21.0",
        },
    ),
}
LOOKED_AT = (*NAMES, *BRIEF) if is_night() else ON_A_COMMIT  # by tests of all of them


def argument(name: str) -> str:
    """Return what a command is given for it: the name of a shipped one, or the path of a brief one."""
    if name not in BRIEF:
        return name
    path = Path(os.environ["KVPLAN_TESTS_SHARE"], f"{name}.{os.getpid()}.toml")
    if not path.exists():
        shipped, changes = BRIEF[name]
        text = shipped_profiles()[shipped].read_text("utf-8")
        for before, after in changes.items():
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        path.write_text(text, "utf-8")
    return str(path)


@cache
def profile(name: str) -> Profile:
    return load_profile(argument(name), stdin=BytesIO())


@cache
def report(name: str) -> Report:
    """The report of a profile, which the first process that asks for it makes."""
    kept = Path(os.environ["KVPLAN_TESTS_SHARE"], f"{name}.pickle")
    if not kept.exists():
        assert figures.advice.__name__ == "advice", "a brief report would be shared"
        given = profile(name)
        made = analyze(given.model, name=given.name, sha256=given.sha256, plan=given.plan)
        whole = kept.with_suffix(f".{os.getpid()}")
        whole.write_bytes(pickle.dumps(made))
        whole.replace(kept)
    found: Report = pickle.loads(kept.read_bytes())
    return found
