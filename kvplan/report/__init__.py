"""The report: every analysis of a profile, as one document."""
