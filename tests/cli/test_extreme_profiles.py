"""Every command takes any profile that is valid: classes so rare that a float cannot hold what they add."""

import resource
from pathlib import Path

import pytest

import kvplan
from kvplan.cli.app import main
from kvplan.plots.data import segment_memory
from kvplan.profile.reading import load_profile

HEAD = 'schema = 1\nname = "rare"\ngpu.memory_tokens = 1000\ntiming = { d0 = "10 ms", d1 = "1 us" }\n'
CLASS = '[[classes]]\nname = "{}"\ninput = 9\ndecode = {}\nrate = {}\n'
PROFILES = {
    "24 powers of ten apart": [("4", "1e12"), ("5", "1e-12")],
    "rarer than a share can say": [("4", "1.7"), ("5", "2.4e-125")],
    "one length all but never": [("{ 1 = 1e5, 2 = 1e-12 }", "1.7")],
    "less than one request since the beginning of time": [("{ 1 = 1e-12, 2 = 1e12 }", "1e-300")],
}
FEW = "--requests 60 --seeds 2"
COMMANDS = (
    "analyze FILE",
    "check FILE --require verdict.status!=overloaded",
    "simulate FILE --policy greedy,vllm --requests 60",
    "explain load FILE",
    "explain stability.min_stable_input_tokens.asymptotic FILE",
    "sweep FILE --vary timing.d0=1ms,2ms -o OUTPUT",
    f"size FILE --rate 1 {FEW}",
    f"mix FILE --replicas 2 {FEW}",
    f"emit FILE --engine vllm {FEW}",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("classes", PROFILES.values(), ids=PROFILES)
def test_a_class_however_rare_is_served(
    classes: list[tuple[str, str]], command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rare.toml"
    file.write_text(HEAD + "".join(CLASS.format(i, *one) for i, one in enumerate(classes)))
    places = {"FILE": str(file), "OUTPUT": str(tmp_path / "rows.csv")}
    code = main([places.get(word, word) for word in command.split()])
    overloaded = command.startswith("check") and "1e12" in classes[0]
    assert code == (1 if overloaded else 0), capfd.readouterr().err


ENDLESS = """schema = 1
name = "answers so long that the budget of the fluid map ends before the first"
gpu = { memory_tokens = 272161381, block_tokens = 16, prefix_caching = false }
timing = { d0 = 0.308, d3 = 0.00235 }
classes = [{ name = "a", input = 2244, decode = { uniform = [228945, 242617] }, rate = 87.0 }]
"""


ROUNDED = {
    "one class that all but never comes beside lengths that nobody has": """
gpu = { memory_tokens = 11123307, block_tokens = 16 }
timing = { d0 = 0.145, d1 = 5.7e-09 }
[[classes]]
name = "a"
input = 19
decode = { uniform = [34, 35] }
rate = 2.8431563783384955e-297
[[classes]]
name = "b"
input = 6752
decode = { 211 = 1201443.0, 45 = 33.5, 48 = 783.6, 4 = 1.7e-12, 1 = 1.3e-11 }
rate = 4.8
""",
    "a fleet whose answers are over with their first token": """
gpu = { memory_tokens = 248786, block_tokens = 16 }
timing = { d0 = 0.00155, d1 = 2.8e-09, d3 = 3.5e-05, d4 = 4.2e-05 }
fleet = { replicas = 692 }
[[classes]]
name = "a"
input = 9
decode = 1
rate = 533.2543794452448
[[classes]]
name = "b"
input = 90
decode = 1
rate = 0.00011348355151828846
""",
    "a class so rare that its longest survive in no float": """
gpu = { memory_tokens = 809, block_tokens = 1, max_num_seqs = 6022 }
timing = { d0 = 3391724.3848660835 }
[[classes]]
name = "a"
input = 806
decode = 2
rate = 0.5315
[[classes]]
name = "b"
input = 97
decode = { geometric = 1.9951025109502991 }
rate = 9.449754810368102e-300
""",
    "a fleet whose memory holds more requests than a float can square": """
gpu = { memory_tokens = 340, block_tokens = 1 }
timing = { d0 = 0.0087, d2 = 0.00011, d5 = 0.00093, knee_tokens = 30726 }
fleet = { prefill = 163, decode = 132 }
[[classes]]
name = "a"
input = 64
decode = 39
rate = 2.038084997963354e-223
[[classes]]
name = "b"
input = 33
decode = 1
rate = 0.0958
""",
    "states, whose context no iteration reads": """
gpu = { block_tokens = 64, kv = [{ kind = "state", layers = 21, bytes = 171 }], kv_blocks = 21 }
timing = { d0 = 0.0021890021370360078, d1 = 3.276519231546125e-07 }
classes = [{ name = "a", input = 3, decode = 2, rate = 2.976541526175729 }]
slo = { e2e_s = { p50 = 0.3085996439118208 } }
""",
    "sessions that leave no full page": """
gpu = { memory_tokens = 137396, block_tokens = 64 }
timing = { d0 = 0.0023 }
classes = [{ name = "a", input = 32, decode = 6, rate = 0.0457 }]
[[sessions]]
name = "talk"
shared = 2009
first = 12
user = 2
decode = 1
turns = 3
think = { law = "exponential", mean = 1.2 }
rate = 9.3
""",
    "drafts beside a class all but never there": """
gpu = { memory_tokens = 8323932, block_tokens = 16 }
timing = { d0 = 0.054, d2 = 0.0009 }
speculative = { tokens = 3, accepted = [0.9, 0.8, 0.7], draft_time = 0.18, verify_time = 0 }
[[classes]]
name = "a"
input = 6
decode = 1
rate = 40.67
[[classes]]
name = "b"
input = 7664
decode = { geometric = 12.909288104365586 }
rate = 4.16e-297
""",
    "drafts that take longer to verify than anybody stays away": f"""
gpu = {{ memory_tokens = 54369, block_tokens = 1, prefill = "fused" }}
timing = {{ d0 = 0.0154, d1 = 1.13e-09, d2 = 0.000339 }}
classes = [{{ name = "a", input = 93, decode = 15, rate = 0.72 }}]
slo.ttft_s.p95 = 0.086
[speculative]
tokens = 34
accepted = {[0.78**i for i in range(1, 35)]}
draft_time = 0
verify_time = 50043364943.98772
""",
    "states that fill iterations of months, whose sums run away from floats": """
gpu.block_tokens = 16
gpu.prefill = "disaggregated"
gpu.kv = [{ kind = "state", layers = 1, bytes = 4481 }]
gpu.kv_blocks = 19
timing = { d0 = 14922198.24929281, d1 = 15.760627881192484, d2 = 0.08864710909824325 }
workload = { rate = 152.83673625981936 }
plan = { delta = 6.8e-40, horizon = 0.75, segments = 1 }
fleet = { replicas = 5275 }
[[classes]]
name = "a"
input = 62
decode = { uniform = [8, 28] }
share = 1.0
""",
    "a budget that nobody ever meets another one in": """
gpu = { memory_tokens = 191, block_tokens = 16, max_num_batched_tokens = 1 }
timing = { d0 = 0.6097580452445688, d1 = 0.34757684835303077, d3 = 0.028989134888056243 }
classes = [{ name = "a", input = 3, decode = 63, rate = 4.143364434974952e-274 }]
""",
    "full iterations that are next to never and would take less than nothing": """
gpu = { memory_tokens = 20419170, block_tokens = 16, max_num_batched_tokens = 2043 }
timing = { d0 = 4.767723250979785e-12, d3 = 4.910840075407065e-10 }
classes = [{ name = "a", input = 3188, decode = { 12 = 6.68, 8 = 0.545 }, rate = 0.00013557060942210664 }]
slo = { ttft_s = { p95 = 15.771474112716554 } }
""",
    "a law that is steeper where it stands than any work can be": """
gpu = { memory_tokens = 3227, block_tokens = 64, max_num_seqs = 3, max_num_batched_tokens = 902 }
timing = { d0 = 0.0013909818200690367, d5 = 3.6177022594084904e-05, knee_tokens = 5898 }
workload = { rate = 659.2097471672913 }
[[classes]]
name = "a"
input = 2937
decode = 20
share = 0.44908240586164266
[[classes]]
name = "b"
input = 262
decode = { geometric = 3.9066357165630445 }
share = 0.5509175941383574
""",
    "arrivals so rare that memory fills in no time that floats hold": """
gpu = { memory_tokens = 16507712, block_tokens = 16 }
timing = { d0 = 0.021867261077691477 }
classes = [{ name = "a", input = 37, decode = 2, rate = 1.904765025309395e-300 }]
workload.period = 9519.8
workload.schedule = [{ at = 0, factor = 0.0 }, { at = 7901.1, factor = 1e-06 }]
""",
    "evictions of which rounding leaves less than nothing": """
gpu = { memory_tokens = 6541048, block_tokens = 16, prefill = "disaggregated", max_num_batched_tokens = 1 }
timing = { d0 = 0.001014435437265238, d2 = 1.5834627822556704e-06, d4 = 0.000248194082861663 }
[workload]
rate = 6.9190167406301315
[[classes]]
name = "a"
input = 1388
decode = { 4 = 0.5187712536662722, 28 = 0.050172448801594424 }
shared = 295
share = 1.0
""",
}


@pytest.mark.parametrize("profile", ROUNDED.values(), ids=ROUNDED)
def test_what_rounding_leaves_is_no_defect(
    profile: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rounded.toml"
    file.write_text(f'schema = 1\nname = "rounded"\n{profile}')
    assert main(["analyze", str(file), "--format", "json"]) == 0, capfd.readouterr().err


HUGE = """schema = 1
name = "requests of one length, which is a billion"
gpu = { memory_tokens = 1_000_000_000_000, block_tokens = 1, prefill = "disaggregated" }
timing = { d0 = 0.01 }
classes = [{ name = "a", input = 999_999_999, decode = 1, rate = 0.001 }]
"""


def test_pages_by_the_billion_are_not_counted_one_by_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "huge.toml"
    file.write_text(HUGE)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 33, most))
    try:
        assert main(["analyze", str(file), "--format", "json"]) == 0, capfd.readouterr().err
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


ENDLESS_PROMPTS = """schema = 1
name = "prompts that are computed token by token"
gpu = { memory_tokens = 405111780, block_tokens = 16, max_num_batched_tokens = 1 }
timing = { d0 = 0.04 }
classes = [{ name = "a", input = 184125153, decode = 7, rate = 0.08 }]
"""


@pytest.mark.parametrize("policy", ["vllm", "sglang", "sarathi"])
def test_prompts_in_more_parts_than_anyone_waits_for_are_refused(
    policy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "endless.toml"
    file.write_text(ENDLESS_PROMPTS)
    assert main(["simulate", str(file), "--policy", policy, "--requests", "5"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {policy}.max_num_batched_tokens = 1: a prompt has 184,125,153 tokens")
    assert main(["analyze", str(file)]) == 0


MANY_OF_LARGE_PAGES = """schema = 1
name = "thousands of replicas, each with a million places in a page"
gpu = { memory_tokens = 1254261, block_tokens = 1000000 }
timing = { d0 = 0.01 }
classes = [{ name = "a", input = 192, decode = 28, rate = 1 }]
fleet = { replicas = 7555 }
"""


def test_replicas_that_memory_cannot_hold_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "large.toml"
    file.write_text(MANY_OF_LARGE_PAGES)
    assert main(["simulate", str(file), "--policy", "vllm", "--requests", "60"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: the states of 7,555 replicas take up to 56.3 GiB, and 1 is the most")


@pytest.mark.nightly
def test_a_cycle_of_which_nothing_was_seen_to_be_done_is_explained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "endless.toml"
    file.write_text(ENDLESS)
    assert main(["explain", "worst_cycle.throughput_rps", str(file)]) == 0, capfd.readouterr().err


STEEP = """schema = 1
name = "an equilibrium where the law is steeper than any linear one that fits"
gpu = { memory_tokens = 429959, block_tokens = 16, max_num_batched_tokens = 927 }
timing = { d0 = 0.0029, d4 = 0.00123, d5 = 0.000624, knee_tokens = 1887 }
classes = [{ name = "a", input = 9867, decode = { 7 = 0.07, 16 = 1.21 }, rate = 0.5296 }]
"""


def test_a_law_that_is_steeper_at_its_equilibrium_than_in_all_has_a_safety_buffer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steep.toml"
    file.write_text(STEEP)
    assert main(["analyze", str(file), "--format", "json"]) == 0, capfd.readouterr().err


TOO_LARGE = """schema = 1
name = "thresholds whose memory no float holds"
gpu = { memory_tokens = 213, block_tokens = 1 }
timing = { d0 = 6059688527.968536, d5 = 0.00033, knee_tokens = 623 }
classes = [{ name = "a", input = 82, decode = { geometric = 3.7348922780139464 }, rate = 25.233699002153287 }]
workload = { cv = 0.07878170229830503 }
"""


def test_what_floats_do_not_hold_is_not_drawn(tmp_path: Path) -> None:
    file = tmp_path / "large.toml"
    file.write_text(TOO_LARGE)
    loaded = load_profile(str(file), stdin=None)
    assert segment_memory(loaded.model, kvplan.analyze(loaded), loaded.plan) is None
