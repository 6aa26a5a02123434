"""Results of ``vllm bench``: one JSON object with input_lens, output_lens, and start_times or duration."""

from collections.abc import Iterator
from typing import Any

from kvplan.errors import ProfileError
from kvplan.ingest.cells import json_object, shown
from kvplan.ingest.reader import Beginning
from kvplan.ingest.text_file import Lines
from kvplan.ingest.trace.columns import Columns, seconds
from kvplan.ingest.trace.format import BadRowError, Extras, Request, request_list


def _recognises(first: Beginning) -> bool:
    """By its lists, or as an object of more than one line."""
    return first.in_json and (first.values is None or first.has("input_lens"))


def _requests(first: Beginning, lines: Lines, extras: Extras) -> Iterator[Request]:
    rest = lines.rest()
    if first.values is not None and rest.strip():
        raise ProfileError(lines.source, "several benchmark results; give one at a time", line=2)
    value = first.values or json_object(first.line + rest)
    if value is None:
        message = f"not JSON: {shown(first.line + rest)}; is the file cut off?"
        raise ProfileError(lines.source, message, line=1)
    inputs, outputs = value.get("input_lens"), value.get("output_lens")
    if not (isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs)):
        seen = ", ".join(list(value)[:8])
        message = f"not a trace: needs the lists input_lens and output_lens, of one length; has {shown(seen)}"
        raise ProfileError(lines.source, message, line=1)
    times: Any = value.get("start_times")
    try:
        if isinstance(times, list) and len(times) == len(inputs):
            columns = Columns("start_times", "input_lens", "output_lens")
        else:
            columns, times = Columns("duration", "input_lens", "output_lens"), [0] * len(inputs)
            extras.duration_s = seconds(value.get("duration"), "duration")
        for row in zip(times, inputs, outputs, strict=True):
            yield columns.request(row, (0, 1, 2))
    except BadRowError as error:
        raise ProfileError(lines.source, str(error), key=error.key) from None


READERS = (request_list("vLLM bench JSON", _recognises, _requests),)
