"""Profiles: the TOML file, its schema, and what is shipped."""
