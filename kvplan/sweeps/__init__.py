"""Many points of a profile: values varied, figures computed at each, results on disk.

``vary``       varied keys, and the values of every point
``columns``    wanted figures, and their places
``points``     a point's model, and its figures
``store``      the file that grows, and going on where it ends
``results``    in memory: as arrays, or read back
``executors``  where the work is done: this process, all cores, Dask
``run``        all of it put together
"""
