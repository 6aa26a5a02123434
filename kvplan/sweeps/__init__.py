"""Many points of a profile: values varied, figures computed at each, results on disk.

``vary``       what is varied, and the values of every point
``columns``    which figures are wanted, and where they are found
``points``     a point's model, and its figures
``store``      the file that grows, and going on where it ends
``results``    in memory: as arrays, or read back
``executors``  where the work is done: this process, all cores, Dask
``run``        all of it put together
"""
