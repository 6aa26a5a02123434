"""Colours of plots and pages by what they are for, light and dark; all texts have a contrast of 4.5 : 1 at least."""

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "ink": "#1c2128",
    "soft": "#57606b",
    "rule": "#d3d9e0",
    "blue": "#0b57b8",
    "orange": "#a64b00",
    "red": "#b3192b",
    "green": "#16692f",
    "violet": "#6a3fb5",
}
DARK: Mapping[str, str] = {
    "paper": "#10151c",
    "ink": "#e5eaf0",
    "soft": "#a3aebb",
    "rule": "#38424e",
    "blue": "#74b3ff",
    "orange": "#f0a35e",
    "red": "#ff8a8f",
    "green": "#6fd08c",
    "violet": "#c3a3ff",
}
