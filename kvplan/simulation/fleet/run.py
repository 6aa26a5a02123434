"""Run a policy on the replicas of a fleet, compiled or not, and put together what they leave behind."""

import math
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from kvplan import compiling
from kvplan.model import FloatArray, IntArray, Replica, Timing
from kvplan.model.fleet import Routing
from kvplan.simulation import engine
from kvplan.simulation.engine import FINISHED, GOES_ON, LIVELOCK, FormBatch
from kvplan.simulation.fleet import loop as fleet_loop
from kvplan.simulation.fleet import transfer
from kvplan.simulation.outcome import Ending, Found, Outcome, Series
from kvplan.simulation.prefixes import Turns
from kvplan.simulation.requests import Requests
from kvplan.simulation.state import (
    ALL,
    ARRIVAL,
    BIN,
    BLIND,
    BRINGS,
    BY_KV,
    BY_REQUESTS,
    DECODE,
    EVICTIONS,
    FINISH,
    FIRST_TOKEN,
    GIVEN_UP,
    HANDED_OVER,
    HIT,
    HORIZON,
    JOINED,
    LIST_COLUMNS,
    MORE_LATER,
    NO_CACHE,
    NOBODY,
    NEXT_OF_CLIENTS,
    NOW,
    PLACE,
    PREFILL,
    RECOVERED,
    RELEASED,
    ROLE,
    ROWLESS,
    RULE,
    SECONDS_PER_TOKEN,
    SITE,
    SITE_NUMBER,
    STAGE,
    UNASKED_END,
    WHOLE,
    Setup,
    State,
    new_state,
)
