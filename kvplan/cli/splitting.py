"""`kvplan size --split`: whether prefill and decode should run apart, and in which ratio."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kvplan.cli.common import DocumentFormat, check_runs, read, rendered, say_compiling, with_slos
from kvplan.cli.output import write_bytes, write_result
from kvplan.cli.prices import labels_of, prices_of
from kvplan.cli.searching import ALL_OF_TRACE, once, watching
from kvplan.errors import UsageError

_AUTO = "auto"  # as many GPUs as it takes


def gpus_of(split: str, demand: Mapping[str, float | None]) -> int | None:
    """The budget; None where it is asked for, for the demand that these options give."""
    if split == _AUTO:
        return None
    if not split.isascii() or not split.isdigit():
        raise UsageError(f"--split {split[:80]!r}: a number of GPUs is wanted, or {_AUTO}")
    for name, given in demand.items():
        if given is not None:
            raise UsageError(
                f"{name} goes with --split {_AUTO}; of {split[:80]} GPUs the largest rate is found"
            )
    return int(split[:9])


def compare_split(
    profiles: Sequence[str],
    sides: tuple[str | None, str | None],
    gpus: int | None,
    rate: float | None,
    headroom: float,
    slo: Sequence[str],
    price: Sequence[str],
    policy: str,
    requests: int | None,
    seeds: int,
    format: DocumentFormat,
    output: Path | None,
    plot: Path | None,
) -> None:
    """Search, and write what was found; the arguments are those of the command."""
    from kvplan.decide.crossing import limited, lines
    from kvplan.decide.fixed_runs import simulated
    from kvplan.decide.splitting import (
        default_requests,
        fewest_gpus,
        gpus_by_formula,
        long_enough,
        split_or_together,
        with_sides,
    )
    from kvplan.formats import json
    from kvplan.layout import splitting as tables
    from kvplan.simulation.experiments.options import seeds as chosen

    if len(profiles) > 1:
        raise UsageError("--split goes with one profile; --prefill and --decode take others for either side")
    check_runs(seeds, requests)
    given = [side or profiles[0] for side in (*sides, profiles[0])]
    known = {name: read(name, output) for name in dict.fromkeys(given)}
    labels = dict(zip(known, labels_of(list(known.values())), strict=True))
    prices = prices_of(
        price,
        {labels[name]: one.model.replica.gpus for name, one in known.items()},
        {labels[name]: one.plan.gpu_hour for name, one in known.items()},
    )
    loaded = with_slos(known[profiles[0]], slo)
    model = with_sides(loaded, *(None if side is None else known[side] for side in sides))
    slos = loaded.plan.slos
    if plot is not None:
        limited(slos)
    needed = (rate or model.total_rate_rps) * (1 + headroom)
    trace = model.arrivals.trace
    if requests is not None and trace is not None:
        raise UsageError(ALL_OF_TRACE)
    size = gpus or gpus_by_formula(model, needed, slos)
    count = (requests or default_requests(model, size)) if trace is None else trace.arrival_s.size
    measure = simulated(
        loaded.plan,
        policy,
        requests=count,
        seeds=chosen(0, seeds),
        announce=once(say_compiling),
        compile=True,  # dozens of runs, each of all replicas
    )
    with watching() as watch:
        measure = watch(labels[profiles[0]], long_enough(measure, count, slos))
        demand = fewest_gpus(model, needed, slos, measure) if gpus is None else None
        found = split_or_together(model, gpus or 0, slos, measure) if demand is None else demand.found
        drawn = None if plot is None else lines(model, found.gpus, slos, measure)
    kinds = tuple(known[name] for name in given)
    shown = tables.Shown(
        found,
        slos,
        policy,
        count,
        seeds,
        demand,
        drawn,
        tuple(prices[labels[name]] for name in given) if prices else None,
        kinds if model.fleet is not None and model.fleet.sides_differ else None,
    )
    text = rendered(
        format,
        output,
        lambda: json.splitting(shown, loaded),
        lambda: [tables.build(shown, loaded.name)],
        *dict.fromkeys([loaded.sha256, *(one.sha256 for one in shown.kinds or ())]),
    )
    if plot is not None and drawn is not None:
        from kvplan.plots import drawing

        write_bytes(drawing.file_of("split", drawn, plot.suffix), plot)
    write_result(text, output)
