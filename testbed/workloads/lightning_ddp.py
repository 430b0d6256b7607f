"""PyTorch Lightning's own launcher and loop, on the CPU: the first process starts the others by LOCAL_RANK.

The first argument is the number of ranks. Every rank runs this program with the same command line.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

# Debian calls its build of 1.13.0 "1.13.0a0", which Lightning takes for an older one
torch.__version__ = torch.__version__.replace("a0", "")

import pytorch_lightning as pl  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from testbed.workloads import faults, phases  # noqa: E402
from testbed.workloads.torch_ddp import BATCH, FEATURES, Samples  # noqa: E402
from testbed.workloads.training import EventLog, Options, Pace, Run  # noqa: E402


class Network(pl.LightningModule):  # type: ignore[misc]
    """A small network; each step takes as long as the options say."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        layers = [torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
        self._layers = torch.nn.Sequential(*layers)
        self._loss_function = torch.nn.CrossEntropyLoss()

    def _register_sharded_tensor_state_dict_hooks_if_available(self) -> None:
        # Debian's torch 1.13 cannot import its sharded tensors under Python 3.11
        pass

    def on_train_start(self) -> None:
        """The process group is there."""
        self.rank, self.world = int(self.global_rank), int(self.trainer.world_size)
        self._log = EventLog(self._options.events, self.rank)
        self._log.write("start")
        self._log.write("ready")
        self._run = Run(self, self._options, self._log, Pace(self._options))

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        """Begin the fault or the phase."""
        if index == self._options.inject_step and self._options.inject:
            phases.begin(self._run)
            faults.begin(self._run)
        phases.before_step(self._run)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """Compute; Lightning does the gradients."""
        self._run.pace.compute()
        x, y = batch
        loss: torch.Tensor = self._loss_function(self._layers(x), y)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        """Write the step down."""
        self._log.write("step", step=index)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """See Lightning."""
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def next_batch(self) -> None:
        """See training.Trainer; the loop fetches its input itself."""

    def barrier(self) -> None:
        """See training.Trainer."""
        self.trainer.strategy.barrier()


def main() -> None:
    """Train as the command line says."""
    world, options = int(sys.argv[1]), Options.from_argv(sys.argv[2:])
    torch.set_num_threads(1)
    armed = int(os.environ.get("LOCAL_RANK", "0")) == options.inject_rank
    samples = Samples(options, EventLog(options.events, None), 0, armed)
    loader: DataLoader[Any] = DataLoader(samples, BATCH, num_workers=options.workers)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,  # it would write down the order of all samples
    )
    trainer.fit(Network(options), loader)


if __name__ == "__main__":
    main()
