"""Real runs, foretold: what clients measured of engines beside what kvplan says of them.

A real run (`record`) says what is fitted and what is foretold, and makes rows of both figures; `hidden` keeps what is
to be foretold from whoever fits; `score` sums up how far off the rows are.
"""
