"""Which functions go into the compiled loop."""

from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
KERNELS: list[Callable[..., Any]] = []


def kernel(function: _Function) -> _Function:
    """Mark a function that compiled runs need; it stays as it is for all others."""
    KERNELS.append(function)
    return function
