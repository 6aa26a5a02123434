"""Requirements on reports: judgement, remedies, and differences between two reports."""
