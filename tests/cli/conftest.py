"""A toy in place of every model, and a stream that says it is a terminal."""

import pytest
from toys import toy_pair

from explorer.engine import loading


@pytest.fixture
def pair(monkeypatch):
    """`load_pair` gives a toy; the list holds the arguments of each call."""
    calls = []

    def load_pair(target="default", drafter="auto", precision="auto", progress=None, head=None):
        calls.append((target, drafter, precision))
        progress("Loading toy", 0, 1)
        return toy_pair("llama", "none" if drafter == "none" else "model")

    monkeypatch.setattr(loading, "load_pair", load_pair)
    return calls
