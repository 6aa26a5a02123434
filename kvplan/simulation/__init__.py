"""The simulator: integer requests, wall-clock iterations, every policy over one loop.

``requests``   arrivals and lengths of requests
``state``      the arrays of a run
``actions``    actions on requests: arrival, admission, growth, eviction, completion
``policies``   choice of who is admitted, runs, or has to go; one module each
``engine``     the loop over iterations, plain or compiled
``outcome``    results of a run, per request and over time
``metrics``    outcome → figures with confidence intervals
``estimates``  means, percentiles and shares of values in batches
``intervals``  precision of a figure, and whether a queue grows
"""
