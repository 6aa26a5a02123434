"""The outside world turned into profiles: request traces today."""
