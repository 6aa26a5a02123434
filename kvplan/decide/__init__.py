"""Decisions on reports: gate, remedies, differences."""
