"""Engines' start-up logs."""
