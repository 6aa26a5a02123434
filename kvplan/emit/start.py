"""Command that starts an engine: its model, weights and memory, and the settings of a replica, as its flags."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from kvplan.emit.base import Engine, Flag, version_of
from kvplan.engine import numbers
from kvplan.errors import UsageError
from kvplan.ingest.model.config import checkpoints, read_model
from kvplan.ingest.model.estimate import takes
from kvplan.ingest.model.hardware import find_gpu
from kvplan.ingest.model.shape import ModelShape, number_bytes
from kvplan.ingest.model.weights import named_storage
from kvplan.model import EngineName, ServingModel
from kvplan.units import format_number

_PLACEHOLDER = "MODEL"
_OF_MODEL = "of [model] in the profile"


class Start(NamedTuple):
    """Command that starts an engine: the words it begins with, flags, and notes on both."""

    words: str
    flags: tuple[Flag, ...]
    notes: tuple[str, ...]
    in_file: bool  # whether flags are settings of a file that the command names

    @property
    def arguments(self) -> list[str]:
        """Flags and their values."""
        return [] if self.in_file else [flag.words for flag in self.flags]

    @property
    def command(self) -> str:
        """The whole command, in a line."""
        return " ".join([self.words, *self.arguments])


def started(
    engine: Engine,
    settings: Iterable[Flag],
    model: ServingModel,
    table: Mapping[str, Any] | None = None,
    folder: Path = Path(),
) -> Start:
    """Return the start of a replica with these settings, and `[model]` of its profile, which is in `folder`."""
    name, flags, notes = _PLACEHOLDER, [*settings], []
    if table is not None:
        served = _Model(engine, table, model, folder)
        name, flags, notes = served.name, [*served.flags(), *flags], [*served.notes()]
    flags, lacking = versed(engine, flags, version_of(engine, model))
    words = engine.starts.format(shlex.quote(name))
    return Start(words, tuple(flags), (*notes, *lacking), in_file=engine.assigns != " ")


def versed(engine: Engine, flags: Iterable[Flag], version: str) -> tuple[list[Flag], list[str]]:
    """Part flags in those that a version has, and sentences on the others."""
    had, lacking = [], []
    for flag in flags:
        known = engine.flags[flag.flag]
        if known.is_in(version):
            had.append(flag)
        else:
            needs = f"{flag.words} needs {engine.title} {known.since}, and this is {version}"
            lacking.append(f"Not set: {needs} ({flag.why.removesuffix('.')}).")
    return had, lacking


class _Model:
    """The table [model] of a profile, for an engine."""

    def __init__(self, engine: Engine, table: Mapping[str, Any], model: ServingModel, folder: Path) -> None:
        self.engine, self.table, self.model = engine, table, model
        self.version = version_of(engine, model)
        self.ranks, self.kind = model.replica.parallelism, table.get("kv_dtype", "auto")
        config, self.named, self.shape = table.get("config"), table["name"], None
        with suppress(UsageError):  # a file may be gone: the weights are taken as they are
            self.shape = read_model(folder / config if config else self.named)
        if config and Path(config).name == "config.json":
            self.named = str((folder / config).parent)
        self.weights = self._other_weights()
        own = self.weights is None or self._is_quantised_while_loading()
        self.checkpoint = None if own else checkpoints().get(table["name"], {}).get(self.weights or "")
        self.name = self.named if own else self.checkpoint or _PLACEHOLDER

    def _other_weights(self) -> str | None:
        """Type of the weights, where it is not the checkpoint's own."""
        given = self.table.get("weights")
        if given is None or self.shape is None or given == self.shape.storage.name:
            return None
        storage = named_storage(given)
        return None if storage == self.shape.storage else storage.name

    def _is_quantised_while_loading(self) -> bool:
        known = self.engine.flags.get(self.engine.spellings.get("weights", ""))
        if known is None or self.shape is None or not self.shape.storage.is_16_bit:
            return False
        streams = known.streams and (not self.version or numbers(self.version) >= numbers(known.streams))
        return self.weights in known.takes and (bool(streams) or self._fits(self.shape))

    def _fits(self, shape: ModelShape) -> bool:
        """Tell whether the weights of the checkpoint fit while they are loaded."""
        try:
            memory = find_gpu(self.table.get("gpu", "")).memory_bytes
        except UsageError:
            return False
        return shape.loaded_bytes(self.ranks) <= self.utilization * memory

    @property
    def utilization(self) -> float:
        """Share of the GPU's memory that the engine may use."""
        name = EngineName(self.engine.name)
        try:
            own = takes(name, self.version)[0].utilization
        except UsageError:  # of a version that is not known
            own = takes(name)[0].utilization
        return float(self.table.get("utilization", own))

    def flags(self) -> Iterator[Flag]:
        """Write the table, as far as the engine has flags for it."""
        spellings, table = self.engine.spellings, self.table
        if self.weights is not None and self.name == self.named:
            yield Flag(spellings["weights"], self.weights, _OF_MODEL)
        if (kind := self._kv_dtype) is not None:
            yield Flag(spellings["kv_dtype"], kind, _OF_MODEL)
        whose = _OF_MODEL if "utilization" in table else f"{self.engine.title}'s own"
        share = format_number(self.utilization)
        yield Flag(spellings["utilization"], share, f"{whose}; the KV capacity rests on it")
        own = self.shape and self.shape.max_model_len
        if own and (self.model.engine is None or self.model.engine.max_model_len is None):
            longest = self.model.replica.longest(own)
            why = "the model's own" if longest == own else f"what memory holds, of the model's own {own:,}"
            yield Flag(spellings["max_model_len"], str(longest), why)
        if "loras" in table and "loras" in spellings:
            yield Flag("--enable-lora", None, _OF_MODEL)
            yield from (Flag(spellings[key], str(table[key]), _OF_MODEL) for key in ("loras", "lora_rank"))

    @property
    def _kv_dtype(self) -> str | None:
        """Engine's name of the KV cache type; None where it takes that by itself, or has no such type."""
        words = self.engine.flags[self.engine.spellings["kv_dtype"]].takes
        return None if isinstance(words, str) else words.get(self.kind.lower())

    def notes(self) -> Iterator[str]:
        """Say what the command leaves out."""
        title, shape = self.engine.title, self.shape
        if self.name != self.named:
            which = f"this is {self.checkpoint}" if self.checkpoint else f"{_PLACEHOLDER} stands for it"
            needed = f"A checkpoint of {self.named} in {self.weights} is needed, and {which}"
            yield f"{needed}: {title} makes none as it loads here."
        widths = {number_bytes(shape, kind) for kind in (self.kind, "auto")} if shape is not None else set()
        if len(widths) > 1 and self._kv_dtype is None:
            yield f"No flag of {title} is known for a KV cache in {self.kind}."
        if "loras" in self.table and "loras" not in self.engine.spellings:
            yield f"Flags of LoRA adapters are not written for {title}."
