"""The catalogue: models and GPUs that kvplan knows, by any of their names."""

from collections.abc import Iterable

from kvplan.errors import UsageError
from kvplan.ingest.model.config import models as known_models
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import gpu_names, gpus, plain
from kvplan.ingest.model.shape import ModelShape, kv_bytes_per_token
from kvplan.show import page
from kvplan.show.view import Json, View, header
from kvplan.units import ABSENT, format_bytes, format_tokens


def models(word: str) -> View:
    """Show the models one of whose names has a word in it."""
    rows: list[Json] = []
    for names in known_models().values():
        for full in dict.fromkeys(names.values()):
            short = [name for name, other in names.items() if other == full and "/" not in name]
            if _has(word, (full, *short)):
                also = [name for name in short if name != full.partition("/")[2]]
                rows.append({"name": full, "also": also, **_sizes(read_model(full))})
    columns: page.Columns[Json] = {
        page.Column("model"): lambda row: row["name"],
        page.number("weights"): lambda row: f"{row['parameters'] / 1e9:,.3g} B",
        page.number("KV/token"): lambda row: format_bytes(row["kv_bytes_per_token"]),
        page.number("longest"): lambda row: format_tokens(row["max_model_len"]),
    }
    return _view("models", word, rows, columns)


def _sizes(shape: ModelShape) -> Json:
    return {
        "parameters": shape.counts.total,
        "kv_bytes_per_token": kv_bytes_per_token(shape),
        "max_model_len": shape.max_model_len,
        "weights": shape.weights,
    }


def gpus_of(word: str) -> View:
    """Show the GPUs one of whose names has a word in it."""
    names = gpu_names()
    rows: list[Json] = [
        {
            "name": gpu.name,
            "also": names[gpu.name],
            "memory_bytes": gpu.memory_bytes,
            "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s,
            "flops_bf16": gpu.flops_bf16,
            "flops_fp8": gpu.flops_fp8,
            "watts": gpu.watts,
        }
        for gpu in gpus()
        if _has(word, (gpu.name, *names[gpu.name]))
    ]
    columns: page.Columns[Json] = {
        page.Column("GPU"): lambda row: row["name"],
        page.number("memory"): lambda row: f"{row['memory_bytes'] / 2**30:.4g} GiB",
        page.number("bandwidth"): lambda row: f"{format_bytes(row['bandwidth_bytes_per_s'])}/s",
        page.number("TFLOPS 16-bit"): lambda row: f"{row['flops_bf16'] / 1e12:,.4g}",
        page.number("8-bit"): lambda row: (
            ABSENT if row["flops_fp8"] is None else f"{row['flops_fp8'] / 1e12:,.4g}"
        ),
        page.number("power"): lambda row: ABSENT if row["watts"] is None else f"{row['watts']:,.4g} W",
    }
    return _view("gpus", word, rows, columns)


def _has(word: str, names: Iterable[str]) -> bool:
    """Tell whether a word is in one of several names, without regard to case and punctuation."""
    return any(plain(word) in plain(name) for name in names)


def _view(kind: str, word: str, rows: list[Json], columns: page.Columns[Json]) -> View:
    if not rows:
        raise UsageError(f"{word[:60]!r} is in no name; kvplan {kind} lists all")
    title = f"{len(rows)} {'model' if kind == 'models' else 'GPU'}{'s' * (len(rows) > 1)}"
    also = (f"{row['name']} is also {', '.join(row['also'])}" for row in rows if row["also"])
    section = page.section(kind, title, page.tabulate(columns, rows), notes=also)
    return View(
        lambda: {**header(), kind: rows},
        lambda _: page.document([section]),
        rows=lambda written: written[kind],
    )
