"""All real runs, and where their data may be."""

from pathlib import Path

from scoreboard.cached import CACHED
from scoreboard.measured import MEASURED
from scoreboard.rates import RATES
from scoreboard.record import RealRun
from scoreboard.replays import RTX4090, RTXPRO6000
from scoreboard.runs import PUBLISHED
from scoreboard.sweeps import HIGH, SHAPE
from scoreboard.tables import SPLITWISE
from scoreboard.unmeasured import PARALLELISM, UNMEASURED
from scoreboard.watermark import WATERMARK

_ALL = (
    PUBLISHED,
    HIGH,
    SHAPE,
    MEASURED,
    UNMEASURED,
    PARALLELISM,
    RATES,
    CACHED,
    RTX4090,
    RTXPRO6000,
    SPLITWISE,
    WATERMARK,
)
RUNS: dict[str, RealRun] = {run.name: run for run in _ALL}


def folder_beside_checkout() -> Path | None:
    """The folder of data beside a checkout; None where there is none."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    return folder if folder.is_dir() else None
