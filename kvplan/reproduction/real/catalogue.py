"""All real runs, and where their data may be."""

from pathlib import Path

from kvplan.reproduction.real.cached import CACHED
from kvplan.reproduction.real.rates import RATES
from kvplan.reproduction.real.record import RealRun
from kvplan.reproduction.real.replays import RTX4090, RTXPRO6000
from kvplan.reproduction.real.sweeps import HIGH, NOTHING, SHAPE
from kvplan.reproduction.real.tables import SPLITWISE
from kvplan.reproduction.real.watermark import WATERMARK

RUNS: dict[str, RealRun] = {
    run.name: run for run in (HIGH, SHAPE, NOTHING, RATES, CACHED, RTX4090, RTXPRO6000, SPLITWISE, WATERMARK)
}


def folder_beside_checkout() -> Path | None:
    """The folder of data beside a checkout; None where there is none."""
    folder = Path(__file__).resolve().parents[4] / "shared" / "data"
    return folder if folder.is_dir() else None
