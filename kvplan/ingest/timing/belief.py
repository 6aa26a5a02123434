"""What is believed of an estimate: each constant is off by a factor of its own.

ln(constant/estimate) is normal around 0, independent of the others': a covariance learnt from sweeps does not transfer
to other models. The law's misfit counts as noise: loads of one engine repeat far better than any law has them.
"""

from kvplan.ingest.timing.equations import Kind

SPREAD, OVERHEAD_SPREAD = 0.4, 0.8  # standard deviations of ln(constant/estimate)
NOISE = {Kind.TPOT: 0.05, Kind.TTFT: 0.12}  # of ln(measured/law)
