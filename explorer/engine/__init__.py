"""Models, drafters, caches and the decode loop. Yields plain events; knows nothing of pages, tasks or training."""
