"""Engines' metrics."""
