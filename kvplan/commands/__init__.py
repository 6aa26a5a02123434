"""The commands, by what they are about: parse, call, render, write. `kvplan.cli` puts them together.

Results go to standard output, everything else to standard error. What a command needs is imported inside it, so
that ``--help`` and ``--version`` answer at once.
"""
