"""Samples of iterations: read, fitted, written."""
