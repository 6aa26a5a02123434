"""Engines: what can be set, and which settings gain."""
