"""Show results: a document model, its tables and charts, and the formats it is written in."""
