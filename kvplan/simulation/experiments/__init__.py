"""Experiments: policies side by side, in pairs, over pools of replicas."""
