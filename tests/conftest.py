"""Shared by all tests: where Chromium is, and a cache of weights that no test may spoil."""

import os
import shutil

import pytest

import explorer  # noqa: F401 (before any test imports torch: it sets how long idle threads spin)


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome, or None."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


def pytest_configure(config: pytest.Config) -> None:
    """Browser tests may be skipped on a laptop, never in CI."""
    if os.environ.get("CI") and find_chromium() is None:
        raise pytest.UsageError("CI is set and no Chromium is installed: the browser tests would be skipped.")
    if os.environ.get("CI") and shutil.which("cc") is None:
        raise pytest.UsageError("CI is set and no C compiler is installed: the compiled passes would not be tested.")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser; skips where there is none."""
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium is installed")
    return path


@pytest.fixture(scope="session")
def default_weights() -> str:
    """Folder of the default target, fetched on first use; skips where no home of the weights answers."""
    from explorer.engine.weights import default_folder
    from explorer.errors import WeightsError

    try:
        return str(default_folder())
    except WeightsError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
