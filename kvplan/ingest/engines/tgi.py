"""TGI: ``Setting max batch total tokens to 446320``."""

import re

from kvplan.ingest.engines import NUMBER, Capacity, EngineLog

LOG = EngineLog(
    engine="TGI",
    looked_for="'Setting max batch total tokens to …'",
    words=("max batch total tokens",),
    capacities=(Capacity(re.compile(rf"Setting max batch total tokens to {NUMBER}")),),
)
