"""SGLang's log, 0.2 to today: ``Decode batch. #running-req: 8, #token: 62531, …``, comma or full stop."""

import re

from kvplan.ingest.timing.collector import Collector
from kvplan.ingest.timing.format import LogFormat, floats

_DECODE = re.compile(
    r"Decode batch[.,] #running-req: (\d+), #(?:full )?token: (\d+),"
    r"(?:(?!Decode batch).)*?gen throughput \(token/s\): ([\d.]+)"
)
_PREFILL = re.compile(r"Prefill batch[.,](?:(?!Prefill batch).)*?#new-token: (\d{1,12})(?!\d)")
_INTERVAL = re.compile(r"decode_log_interval=(\d{1,12})(?!\d)")
_DEFAULT_INTERVAL = 40  # decode batches from one line to the next


class _Reader:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._interval = _DEFAULT_INTERVAL
        self._new_tokens = self._prefills = 0

    def line(self, number: int, text: str) -> None:
        if found := _INTERVAL.search(text):
            self._interval = max(1, int(found[1]))
        elif "Prefill batch" in text:
            if found := _PREFILL.search(text):
                self._new_tokens += int(found[1])
                self._prefills += 1
            else:
                self._collector.skip("cut off or in an unknown form", number)
        elif "Decode batch" in text:
            if values := floats(_DECODE.search(text)):
                self._decode(number, *values)
            else:
                self._collector.skip("cut off or in an unknown form", number)
            self._new_tokens = self._prefills = 0

    def _decode(self, number: int, running: float, kv_tokens: float, generated: float) -> None:
        # The throughput spans all decode batches since the last line and the prefill batches among them.
        batches = self._interval + self._prefills
        tau = running / generated * self._interval / batches if generated > 0 else 0.0
        sample = kv_tokens, self._new_tokens / batches, running, tau
        self._collector.add("SGLang log", sample, number, hidden_prefill=True)

    def end(self) -> None:
        pass


FORMAT = LogFormat(_Reader)
