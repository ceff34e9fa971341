"""Errors whose text is meant for the user: what came, what is allowed, what to do.

ExplorerError
├── SettingError     a setting is out of range, or an input cannot be used
├── ModelPairError   target and drafter do not fit together, or one of them cannot be used here
├── WeightsError     weights are missing, damaged, or cannot be fetched or saved
└── TraceError       a trace file cannot be read
"""


class ExplorerError(Exception):
    """Base class; the page shows its text, the command line prints it and exits with 2."""


class SettingError(ExplorerError):
    """A setting or an input is outside what is allowed."""


class ModelPairError(ExplorerError):
    """A target, a drafter or a head that cannot be used, alone or together."""


class WeightsError(ExplorerError):
    """Weights that are missing, damaged, or that could not be fetched or saved."""


class TraceError(ExplorerError):
    """A trace that cannot be read."""
