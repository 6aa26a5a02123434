"""What runs of the simulator say about a profile: measured, with intervals, where an operator acts on it."""
