"""A second simulator of one replica, to judge what kvplan measures: it shares no code with what it judges.

Requests that share nothing are never walked one by one. While nobody joins or leaves, all decoders gain a token in
every iteration, so what an iteration needs follows from a count of requests by their place in a block and from a
calendar of completions.

=============  =========================================================================
`system`       a profile as a few numbers; raises where the oracle cannot follow it
`kernel`       the loop, one compiled function for every policy
`saturated`    rates under a backlog, from collapsed states, and the truth about a verdict
`live`         latencies at a rate, and what was in memory and in the queue
=============  =========================================================================

Not there: prefix caches, sessions, drafts, layers of several kinds, fleets, schedules, recorded traces.
"""

from oracle.live import Live, live, replay
from oracle.saturated import Served, Truth, truth
from oracle.system import System, Unsupported

__all__ = ["Live", "Served", "System", "Truth", "Unsupported", "live", "replay", "truth"]
