"""ShareGPT's conversations: a list in JSON of texts that people and a model wrote in turn. No traffic, and so refused.

It has neither times of turns nor tokens, so that no rate, no gap and no length can be fitted.
"""

import re
from collections.abc import Iterator

from kvplan.errors import ProfileError
from kvplan.ingest.text_file import Lines
from kvplan.ingest.trace.format import Extras, FirstLine, RequestFormat
from kvplan.ingest.trace.identities import Request

_LIST = re.compile(r'\s*\[\s*\{[^{[]*"(conversations|messages)"\s*:\s*\[')
_KEYS = {"id", "model", "system", "conversations", "messages"}


def _recognises(first: FirstLine) -> bool:
    """A list of them, or one a line with nothing else."""
    if first.values is None:
        return not first.in_json and bool(_LIST.match(first.text))
    return first.values.keys() <= _KEYS and bool(first.values.keys() & {"conversations", "messages"})


def _refused(first: FirstLine, lines: Lines, extras: Extras) -> Iterator[Request]:
    raise ProfileError(
        lines.source,
        "texts of conversations, without arrival times and tokens, tell no rate and no length; give the requests that "
        "a server had of them (time, input_tokens, output_tokens and conversation_id), or write [[sessions]] yourself",
        line=lines.number,
    )


FORMAT = RequestFormat("ShareGPT JSON", _recognises, _refused)
