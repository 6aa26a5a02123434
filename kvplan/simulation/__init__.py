"""The simulator: integer requests, wall-clock iterations, every policy over one loop.

``requests``   who arrives when, and how long they are: processes and traces
``outcome``    what a run leaves behind, per request and over time
``metrics``    outcome → figures with confidence intervals
<<<<<<< HEAD
``intervals``  how sure a figure is, and whether a queue grows
=======
>>>>>>> sim-oracle
"""
