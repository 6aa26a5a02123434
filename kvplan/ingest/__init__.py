"""The outside world turned into profiles, with where each figure comes from.

===========  ===========================================================================
`trace`      recorded requests to classes and rates, or to requests to simulate
`log`        KV capacity and limits out of an engine's start-up log
`metrics`    KV capacity, lengths and rates out of a server's Prometheus metrics
`model`      estimates from a model's configuration and a GPU
`timing`     logs, series and tables to samples of iterations, and those to a timing
===========  ===========================================================================

Every file from outside is read by `text_file`; `recognition` tells what it is, `gathering` makes one profile of all,
`profile_text` writes it.
"""
