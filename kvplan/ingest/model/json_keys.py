"""A config.json read key by key, each with its type and range; what does not fit is named with its key."""

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import ProfileError, UsageError
from kvplan.ingest.text_file import lines_of

LARGEST = 10**9  # of a size in a model's configuration; larger ones are mistakes
_LARGEST_FILE = 16 * 2**20  # characters

# Where writers disagree: what else a key is called. The first one that is there and not null counts.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "max_position_embeddings": ("model_max_length", "max_seq_len"),
    "num_key_value_heads": ("num_kv_heads",),
    "head_dim": ("attention_head_dim",),
    "layer_types": ("layers_block_type",),
    "sliding_window_pattern": ("_sliding_window_pattern",),
    "intermediate_size_mlp": ("intermediate_size",),
    "num_local_experts": ("num_experts", "n_routed_experts"),
    "num_experts_per_tok": ("experts_per_token",),
    "moe_intermediate_size": ("intermediate_size",),
    "decoder_sparse_step": ("moe_layer_freq", "interleave_moe_layer_step"),
    "mamba_num_heads": ("mamba_n_heads",),
    "mamba_head_dim": ("mamba_d_head",),
    "n_groups": ("mamba_n_groups",),
    "ssm_state_size": ("mamba_d_state",),
    "conv_kernel": ("mamba_d_conv",),
    "mamba_ssm_cache_dtype": ("mamba_ssm_dtype",),
    "bits": ("w_bit",),
    "ignore": ("exclude_modules", "modules_to_not_convert"),
}


@dataclass(frozen=True, slots=True)
class Keys:
    """A JSON object and the file it came from; a value of another type is refused with its key.

    Examples
    --------
    >>> keys = Keys("config.json", {"num_hidden_layers": 32, "num_key_value_heads": None})
    >>> keys.size("num_hidden_layers"), keys.size("num_key_value_heads", default=8)
    (32, 8)
    """

    source: str
    values: Mapping[str, Any]

    def find(self, name: str) -> tuple[str, Any]:
        """A key by any of its names, and its value; None where it is missing or null."""
        found = (key for key in (name, *_ALIASES.get(name, ())) if self.values.get(key) is not None)
        key = next(found, name)
        return key, self.values.get(key)

    def has(self, name: str) -> bool:
        """Whether the key is there, and not null."""
        return self.find(name)[1] is not None

    def require(self, *names: str) -> None:
        """Refuse an object without these keys, naming all that are missing."""
        if missing := [name for name in names if self.values.get(name) is None]:
            has = f"the config.json of a language model has {', '.join(names)}"
            raise UsageError(f"{self.source}: misses {', '.join(missing)}; {has}")

    def size(self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """A whole number from `least` to `most`; required where there is no default."""
        key, value = self.find(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, f"{shown(value)}; must be a whole number from {least} to {most:,}")
        return value

    def optional_size(self, name: str) -> int | None:
        """A whole number of at least 1; None where it is missing, null or 0, which switch a feature off."""
        return self.size(name, default=0, least=0) or None

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        return bool(self._typed(name, bool, "true or false", default))

    def text(self, name: str) -> str:
        """A string, lower case; empty where it is missing."""
        return str(self._typed(name, str, "a string", "")).lower()

    def table(self, name: str) -> "Keys | None":
        """An object within the object."""
        value = self._typed(name, dict, "an object", None)
        return None if value is None else Keys(self.source, value)

    def words(self, name: str, kind: type = str, what: str = "strings") -> list[Any] | None:
        """A list of strings."""
        value: list[Any] | None = self._typed(name, list, f"a list of {what}", None)
        if value is not None and not all(isinstance(item, kind) for item in value):
            raise self.error(self.find(name)[0], f"a list; must be a list of {what}")
        return value

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers."""
        return self.words(name, int, "whole numbers")

    def error(self, key: str, message: str) -> ProfileError:
        """An error at a key."""
        return ProfileError(self.source, message, key=key)

    def _typed(self, name: str, kind: type, what: str, default: Any) -> Any:
        key, value = self.find(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.error(key, f"{shown(value)}; must be {what}")
        return value


def shown(value: object) -> str:
    """A value as messages quote it: short, on one line, whatever it is."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    try:
        return reprlib.repr(value)
    except ValueError:  # an integer beyond what Python converts to decimals
        return "a whole number with too many digits"


def read_object(path: Path) -> Keys:
    """The JSON object in a file; refused is what is not text in UTF-8, or holds something else."""
    with lines_of(path) as lines:
        text = lines.rest(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise UsageError(f"{path}: larger than 16 MiB; is this a config.json?")
    return parse_object(text, str(path))


def parse_object(text: str, source: str) -> Keys:
    """The JSON object that a text is.

    >>> parse_object('{"hidden_size": 4096}', "config.json").size("hidden_size")
    4096
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg}; is the file cut off?"
        raise ProfileError(source, message, line=error.lineno) from None
    except (ValueError, RecursionError):  # a number with thousands of digits; brackets nested that deep
        message = "not JSON that can be read: too many digits or too deeply nested"
        raise UsageError(f"{source}: {message}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{source}: {shown(value)}; must be a JSON object, as in {{…}}")
    return Keys(source, value)
