"""Fitting and training of drafters and heads, on top of the engine."""
