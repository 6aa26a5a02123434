"""From a model, GPUs and a demand to replicas and settings."""
