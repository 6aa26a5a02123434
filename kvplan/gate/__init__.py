"""Requirements on reports: what meets them, what would, and what differs between two reports."""
