"""Toy models are too small to share: a second thread only adds waiting, most of all on a busy machine."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_for_toys(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread, but for tests of the real weights."""
    before = torch.get_num_threads()
    if request.node.get_closest_marker("weights") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
