"""Model configurations and GPUs: estimates where nothing is measured."""
