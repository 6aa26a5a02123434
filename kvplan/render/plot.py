"""Small plots of characters, for terminals."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvplan.model import FloatArray

_HEIGHT = 13  # rows of points


def scatter(
    x: FloatArray, y: FloatArray, marked: NDArray[np.bool_], *, width: int, ticks: Sequence[str], below: str
) -> str:
    """Points over a square of characters: ``.`` for one, ``o`` for several, ``x`` for a marked one.

    Parameters
    ----------
    x : ndarray, shape (n,)
        From left to right, at even distances of value.
    y : ndarray, shape (n,)
        From -1 at the bottom to 1 at the top; what is beyond stands at the edge.
    marked : ndarray of bool, shape (n,)
    width : int
        Columns in all.
    ticks : sequence of str
        Labels at the top, in the middle and at the bottom.
    below : str
        What stands under the plot.

    Examples
    --------
    >>> import numpy as np
    >>> x, y, marked = np.array([0.0, 1.0]), np.array([0.0, 9.0]), np.array([False, True])
    >>> one = scatter(x, y, marked, width=12, ticks="+0-", below="t")
    >>> print(*(line for line in one.splitlines() if line.strip(" |")), sep="\\n")
    + |       x
    0 |.-------
    - |
      +--------
       t
    """
    margin = max(map(len, ticks))
    columns = max(width - margin - 3, 8)
    middle = _HEIGHT // 2
    low, high = float(x.min()), float(x.max())
    grid = [[" "] * columns for _ in range(_HEIGHT)]
    grid[middle] = ["-"] * columns
    at = ((x - low) / ((high - low) or 1.0) * (columns - 1)).round().astype(int)
    row = (middle - y.clip(-1, 1) * middle).round().astype(int)
    for i, j, mark in zip(row.tolist(), at.tolist(), marked.tolist(), strict=True):
        seen = grid[i][j]
        grid[i][j] = "x" if mark or seen == "x" else "o" if seen in ".o" else "."
    label = {0: ticks[0], middle: ticks[1], _HEIGHT - 1: ticks[2]}
    lines = [f"{label.get(i, ''):>{margin}} |{''.join(cells)}".rstrip() for i, cells in enumerate(grid)]
    return "\n".join([*lines, f"{'':>{margin}} +{'-' * columns}", f"{'':>{margin}}  {below}"])
