"""Request traces: read, fitted, replayed."""
