"""`[engine]`: what it means, which policy runs for it, and the one line about what is wrong with it."""

import pytest

from kvplan.ingest.profile_text import Part, composed
from kvplan.model import Admission, Engine, EngineName, Knowledge, Origin
from kvplan.profile.reading import Profile, parse_profile
from kvplan.simulation.policies import engine_settings

PROFILE = """schema = 1
name = "engine"
[gpu]
memory_tokens = 40_000
prefill = "fused"
[timing]
d0 = "8 ms"
[[classes]]
name = "chat"
input = 100
decode = 50
rate = 1
"""


def profile(engine: str, prefill: str = "fused") -> Profile:
    text = PROFILE.replace('"fused"', f'"{prefill}"').replace("[timing]", f"{engine}[timing]")
    return parse_profile(text.encode(), "x.toml")


WHOLE, FIRST = Admission
DEFAULTS = {"watermark": (0.0,), "admission": (0.0,)}


@pytest.mark.parametrize(
    ("table", "engine", "policy", "given"),
    [
        ("", None, "vllm", DEFAULTS),
        ("[engine]\n", Engine(), "vllm", DEFAULTS),
        (
            '[engine]\nname = "vllm"\nadmission = "first-chunk"\nwatermark = 0.05\n',
            Engine(EngineName.VLLM, FIRST, 0.05),
            "vllm",
            {"watermark": (0.05,), "admission": (1.0,)},
        ),
        ('[engine]\nname = "sglang"\n', Engine(EngineName.SGLANG), "sglang", {}),
        ('[engine]\nname = "trtllm"\n', Engine(EngineName.TRTLLM), "trtllm-no-evict", {}),
        (
            '[engine]\nname = "trtllm"\nadmission = "whole-prompt"\n',
            Engine(EngineName.TRTLLM, WHOLE),
            "trtllm-no-evict",
            {},
        ),
        (
            '[engine]\nname = "trtllm"\nadmission = "first-chunk"\n',
            Engine(EngineName.TRTLLM, FIRST),
            "trtllm-max-utilization",
            {},
        ),
    ],
)
def test_an_engine_is_run_as_its_version_admits(
    table: str, engine: Engine | None, policy: str, given: dict[str, tuple[float, ...]]
) -> None:
    model = profile(table).model
    assert model.engine == engine
    assert engine_settings(model) == (policy, given)


def test_an_engine_is_kept_where_a_profile_is_composed() -> None:
    base = profile('[engine]\nname = "trtllm"\nadmission = "first-chunk"  # MAX_UTILIZATION\n')
    timing = Part("timing", ("Measured.",), '[timing]\nd0 = "9 ms"', Origin(Knowledge.MEASURED, "a.csv"))
    found = composed(base, [timing], source="a.csv")
    assert found.model.engine == base.model.engine
    assert "# MAX_UTILIZATION" in found.text
