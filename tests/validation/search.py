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

DEMANDS: dict[str, str] = product.DEMANDS | product.TABLES["searched"]


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
