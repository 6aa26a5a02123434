"""The outside world turned into profiles, with where each figure comes from.

============  ==========================================================================
`engine_log`  KV capacity and limits out of an engine's start-up log
`metrics`     KV capacity, lengths and rates out of a server's Prometheus metrics
`engines`     what each engine logs and exports, a module each
`results`     formats of measurements, a module for each load generator
`timing`      samples of iterations and loads, and a timing fitted to them
`trace`       recorded requests to classes and rates, or to requests to simulate
`model`       estimates from a model's configuration and a GPU
============  ==========================================================================

Every file from outside is read by `text_file`, and every format has a record of `reader`; `recognition` tells what a
file is, `gathering` makes one profile of all: `facts` merges what they say.
"""
