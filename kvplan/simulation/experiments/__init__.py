"""Experiments: policies side by side, and in pairs."""
