"""The search of `kvplan plan`, against every budget at every size from the bound up, by the same decision.

Long runs decide, but where short ones see more than `HOPELESS` times the share beyond a limit that is allowed, or a
mean that is more than `HOPELESS_MEAN` times its limit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import process_time

from validation import product
from validation.profiles import Case
from validation.truths import Truths

HOPELESS, HOPELESS_MEAN = 2.0, 1.2
MOST_TOO_MANY, SHARE = 2, 0.1  # demands that get too many, and how many of their replicas; one at least
MORE_BUDGETS = (
    256, 384, 640, 768, 896, 1_280, 1_792, 2_560, 3_584, 5_120, 7_168, 10_240, 12_288, 20_480, 32_768,
)  # fmt: skip

DEMANDS = product.DEMANDS | {
    "chat 70B fast": "Llama-3.1-70B --gpu B200 --tp 2 --weights fp8 --rate 40 --in 3000 --out 400 "
    "--slo ttft-p95=1s --slo itl-p95=40ms",
    "chat 70B many": "Llama-3.1-70B --gpu H200 --tp 4 --weights bf16 --rate 60 --in 2000:0.5 --out 300 "
    "--slo itl-p95=50ms",
    "chat 70B slow": "Llama-3.1-70B --gpu MI300X --tp 2 --weights bf16 --rate 8 --in 3000 --out 400 "
    "--slo ttft-p95=4s --slo itl-p95=100ms",
    "chat 8B": "Llama-3.1-8B --gpu 'A100 80GB' --tp 1 --weights bf16 --rate 100 --in 1000 --out 250 "
    "--slo ttft-p95=500ms --slo itl-p99=60ms",
    "small 8B": "Llama-3.1-8B --gpu H100 --tp 1 --weights bf16 --rate 400 --in 500 --out 100 --slo e2e-p95=3s",
    "lonely 8B": "Llama-3.1-8B --gpu H100 --tp 1 --weights fp8 --rate 2 --in 2000 --out 200 --slo ttft-p95=1s",
    "even 8B": "Llama-3.1-8B --gpu L40S --tp 1 --weights fp8 --rate 40 --in 2000:0 --out 200:0 "
    "--slo ttft-p95=1s --slo itl-p95=50ms",
    "wild 8B": "Llama-3.1-8B --gpu H100 --tp 1 --weights fp8 --rate 60 --in 1500:2 --out 200:1.5 "
    "--slo ttft-p95=1s --slo itl-p95=40ms",
    "documents 8B": "Llama-3.1-8B --gpu H200 --tp 1 --weights bf16 --rate 8 --in 24000:0.5 --out 150 --slo e2e-p95=15s",
    "tight itl 70B": "Llama-3.1-70B --gpu H100 --tp 8 --weights bf16 --rate 15 --in 4000 --out 300 --slo itl-p95=35ms",
    "tight ttft 32B": "Qwen3-32B --gpu H100 --tp 2 --weights fp8 --rate 20 --in 1000 --out 200 --slo ttft-p95=200ms",
    "tpot 32B": "Qwen3-32B --gpu H100 --tp 4 --weights bf16 --rate 15 --in 1500 --out 600 "
    "--slo ttft-p90=1s --slo tpot-p95=30ms",
    "batch 70B": "Llama-3.1-70B --gpu H200 --tp 2 --weights fp8 --rate 40 --in 2000 --out 500",
    "reasoning 70B": "Llama-3.1-70B --gpu B200 --tp 4 --weights fp8 --rate 6 --in 800 --out 4000 "
    "--slo ttft-p95=2s --slo itl-p95=40ms",
    "experts 235B": "Qwen3-235B-A22B --gpu H200 --tp 8 --weights fp8 --rate 25 --in 2000 --out 500 "
    "--slo ttft-p95=2s --slo itl-p95=50ms",
    "means 32B": "Qwen3-32B --gpu H200 --tp 1 --weights fp8 --rate 30 --in 2500 --out 350 "
    "--slo ttft-mean=500ms --slo itl-mean=40ms",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A demand, what is planned, and the least size that any budget keeps, each with its budget."""

    name: str
    bound: int
    found: tuple[int, int | None]
    least: tuple[int, int | None]
    looked: int
    judged: int
    seconds: tuple[float, float]

    @property
    def too_many(self) -> int:
        """Replicas that are not needed; below 0: too few."""
        return self.found[0] - self.least[0]


def rows(_: Iterable[Case], __: Truths) -> Iterator[Row]:
    """Plan each demand, and try everything below."""
    for name, command in DEMANDS.items():
        began = process_time()
        sizes = product.Sizes.of(command)
        planned = process_time()
        least, looked, judged = sizes.found, 0, 0
        for replicas in range(sizes.bound, sizes.found[0] + 1):
            settings = [(replicas, tokens) for tokens in sizes.budgets(replicas, MORE_BUDGETS)]
            near = [s for s in settings if sizes.excess(s, HOPELESS_MEAN, HOPELESS) <= 1]
            near.sort(key=lambda s: sizes.excess(s, HOPELESS_MEAN, HOPELESS))
            looked += len(settings)
            holding = None
            for setting in near:
                judged += 1
                if sizes.holds(setting):
                    holding = setting
                    break
            if holding is not None:
                least = holding
                break
        yield Row(
            name, sizes.bound, sizes.found, least, looked, judged, (planned - began, process_time() - planned)
        )


def table(judged: list[Row]) -> str:
    """A line for each demand."""
    lines = []
    for row in judged:
        verdict = "" if row.too_many == 0 else f"{row.too_many} TOO MANY" if row.too_many > 0 else "TOO FEW"
        lines.append(
            f"{row.name:18} from {row.bound:3}: takes {row.found[0]:3} at {row.found[1]!s:>6}, least {row.least[0]:3} "
            f"at {row.least[1]!s:>6} {verdict:11}{row.looked:4} looks {row.judged:3} judged "
            f"{row.seconds[0]:5.1f} + {row.seconds[1]:5.1f} s"
        )
    return "\n".join(lines)


def broken(judged: list[Row]) -> bool:
    """Whether the promise is."""
    many = [row for row in judged if row.too_many > 0]
    far = any(row.too_many > max(1, SHARE * row.least[0]) for row in many)
    return far or len(many) > MOST_TOO_MANY or any(row.too_many < 0 for row in judged)
