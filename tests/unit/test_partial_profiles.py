"""Profiles that say a part of what there is: they are read, and refused where the rest is needed."""

import pytest

from kvplan.errors import ProfileError
from kvplan.profile.reading import parse_profile

PARTS = {
    "[gpu]": "[gpu]\nmemory_tokens = 60_000\n",
    "[timing]": '[timing]\nd0 = "10 ms"\n',
    "[[classes]]": '[[classes]]\nname = "a"\ninput = 9\ndecode = 9\nrate = 1\n',
}


def test_a_model_wants_all_parts_and_says_what_supplies_those_that_are_missing() -> None:
    for left in range(1, 7):
        there = [name for bit, name in enumerate(PARTS) if left >> bit & 1]
        text = 'schema = 1\nname = "part"\n' + "".join(PARTS[name] for name in there)
        profile = parse_profile(text.encode(), "part.toml")
        assert profile.known is None
        with pytest.raises(ProfileError) as refusal:
            profile.model  # noqa: B018
        said = str(refusal.value)
        assert said.startswith("part.toml: no [")
        for name in PARTS:
            assert (f"no {name}: kvplan import " in said) == (name not in there)
