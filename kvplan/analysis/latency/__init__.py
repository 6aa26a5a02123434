"""Latency of requests below saturation, without a simulation (theory §9)."""

from kvplan.analysis.latency.closed_form import latency
from kvplan.analysis.latency.distribution import ClassLatency, Distribution, Latency

__all__ = ["ClassLatency", "Distribution", "Latency", "latency"]
