"""The simulator: integer requests, wall-clock iterations, every policy over one loop.

``requests``   who arrives when, and how long they are
``state``      the arrays of a run
``actions``    what happens to requests: arrival, admission, growth, eviction, completion
``policies``   who is admitted, runs, or has to go; one module each
``engine``     the loop over iterations, plain or compiled
``outcome``    what a run leaves behind, per request and over time
``metrics``    outcome → figures with confidence intervals
``estimates``  means, percentiles and shares of values in batches
``intervals``  how sure a figure is, and whether a queue grows
"""
