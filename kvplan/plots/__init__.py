"""Plots: charts are data, made from results of the commands; `kvplan.formats.svg` draws them."""
