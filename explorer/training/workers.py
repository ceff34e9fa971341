"""Processes that train together, joined by accelerate; one alone without it.

`torchrun --nproc_per_node 2 -m explorer train ...` starts two. (`accelerate launch --cpu --num_processes 2` starts one
only, where no MPI is installed.)
"""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor


class Workers:
    """This process among the others.

    Attributes:
        index: Of this process, from 0.
        count: Processes in all.
    """

    def __init__(self) -> None:
        self.index, self.count = 0, 1
        self._accelerator: Any = None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            import torch
            from accelerate import Accelerator

            self._accelerator = Accelerator(cpu=not torch.cuda.is_available())
            self.index, self.count = self._accelerator.process_index, self._accelerator.num_processes

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.index == 0

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a tensor of one shape over the processes."""
        return value if self._accelerator is None else self._accelerator.reduce(value, reduction="mean")

    def total(self, value: Tensor) -> Tensor:
        """The sum of a tensor of one shape over the processes."""
        return value if self._accelerator is None else self._accelerator.reduce(value, reduction="sum")
