"""Published results as data: what a paper prints, what kvplan gets, and whether the two agree.

An experiment is a TOML file (`experiment`): workloads, runs on them, and figures with what is printed. `runs` makes
the runs, `judge` compares.
"""
