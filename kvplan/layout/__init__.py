"""What is shown: sections, tables and figures, in words."""
