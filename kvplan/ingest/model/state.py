"""The state that a layer without attention keeps of a request, and the parameters that make it.

What vLLM allocates: the last inputs of a convolution, and what its recurrence carries on.

================  ==========================================  ========================================================
linear attention  value heads · key width · value width       convolution over keys, queries and values
Mamba-2           heads · head width · state width            over the inner vector, and two of each group's states
Mamba-1           inner width · state width                   over the inner vector
================  ==========================================  ========================================================
"""

import math
from dataclasses import dataclass

from kvplan.errors import UsageError
from kvplan.ingest.model.json_keys import Keys

_SIXTEEN_BITS = 2  # bytes
_WIDTHS = {"": 2, "auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
_DT_SHARE = 16  # of the hidden size to the width that Mamba-1 makes its time steps from


@dataclass(frozen=True, slots=True)
class State:
    """Sizes of one layer's state: numbers of the recurrence, and `taps` inputs to each channel of the convolution.

    `heads` are shared out over GPUs. Channels of `groups`, `group_channels` each, are copied where there are more GPUs.
    """

    heads: int
    numbers: int
    number_bytes: int
    taps: int
    channels: int
    parameters: int
    groups: int = 0
    group_channels: int = 0

    def bytes(self, tensor_parallel: int) -> int:
        """Bytes on one GPU.

        Raises
        ------
        UsageError
            Heads cannot be shared out evenly.

        Examples
        --------
        Qwen3-Next: 32 heads of 128 by 128, and 3 inputs to 8,192 channels, in 16 bits.

        >>> State(16, 32 * 128 * 128, 2, 3, 8192, 0).bytes(1)
        1097728
        """
        if self.heads % tensor_parallel:
            raise UsageError(
                f"tensor parallelism {tensor_parallel}: must divide the {self.heads} heads of the layers with states"
            )
        groups = tensor_parallel if self.groups % tensor_parallel else self.groups
        channels = self.channels + groups * self.group_channels
        return (self.numbers * self.number_bytes + self.taps * channels * _SIXTEEN_BITS) // tensor_parallel


def read_state(keys: Keys) -> State:
    """The state that a configuration describes.

    Raises
    ------
    ProfileError
        A size is missing or out of range.
    """
    if keys.values.get("linear_num_value_heads") is not None:
        return _linear(keys)
    if keys.values.get("mamba_num_heads") is not None or keys.values.get("mamba_n_heads") is not None:
        return _mamba2(keys)
    if keys.values.get("mamba_d_state") is not None:
        return _mamba1(keys)
    raise keys.error(
        "layer_types",
        "layers with states of no size; must have linear_num_value_heads (linear attention), mamba_num_heads (Mamba-2) "
        "or mamba_d_state (Mamba-1)",
    )


def _linear(keys: Keys) -> State:
    key_heads, heads = keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads")
    key_width, width = keys.size("linear_key_head_dim"), keys.size("linear_value_head_dim")
    kernel, hidden = keys.size("linear_conv_kernel_dim"), keys.size("hidden_size")
    values, channels = heads * width, 2 * key_heads * key_width + heads * width
    # Queries, keys and values, the gate of the output, two numbers a head; and the way back.
    parameters = hidden * (channels + values + 2 * heads) + values * hidden + channels * kernel
    return State(
        heads=math.gcd(key_heads, heads),
        numbers=heads * key_width * width,
        number_bytes=_width(keys),
        taps=kernel - 1,
        channels=channels,
        parameters=parameters,
    )


def _mamba2(keys: Keys) -> State:
    heads, width = keys.size("mamba_num_heads", "mamba_n_heads"), keys.size("mamba_head_dim", "mamba_d_head")
    groups, state = keys.size("n_groups", "mamba_n_groups"), keys.size("ssm_state_size", "mamba_d_state")
    kernel, hidden = keys.size("conv_kernel", "mamba_d_conv"), keys.size("hidden_size")
    inner, of_groups = heads * width, 2 * groups * state
    # Inputs, their gate, what the groups share, a time step a head; and the way back.
    parameters = hidden * (2 * inner + of_groups + heads) + inner * hidden + (inner + of_groups) * kernel
    return State(
        heads=heads,
        numbers=inner * state,
        number_bytes=_width(keys),
        taps=kernel - 1,
        channels=inner,
        parameters=parameters,
        groups=groups,
        group_channels=2 * state,
    )


def _mamba1(keys: Keys) -> State:
    hidden, state = keys.size("hidden_size"), keys.size("mamba_d_state")
    inner, kernel = keys.size("mamba_expand") * hidden, keys.size("mamba_d_conv")
    said = keys.values.get("mamba_dt_rank")
    steps = -(-hidden // _DT_SHARE) if said in (None, "auto") else keys.size("mamba_dt_rank")
    parameters = 3 * hidden * inner + inner * (2 * steps + 3 * state + kernel)
    return State(
        heads=inner,
        numbers=inner * state,
        number_bytes=_width(keys),
        taps=kernel - 1,
        channels=inner,
        parameters=parameters,
    )


def _width(keys: Keys) -> int:
    """Bytes of a number that the recurrence carries on."""
    names = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    said = keys.text(*names)
    if said not in _WIDTHS:
        name = next(name for name in names if keys.values.get(name) is not None)
        raise keys.error(name, f"{said[:40]!r}; must be one of {', '.join(filter(None, _WIDTHS))}")
    return _WIDTHS[said]
