"""Training runs that can be interrupted at any time: one checkpoint and one result file per method and seed."""

import copy
import json
import os
import time
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from experiments.harness.memory import peak_memory

EVERY = 180.0
"""Seconds between checkpoints inside an epoch."""


@lru_cache(maxsize=1)
def shuffled(count, seed, epoch):
    """The numbers 0 .. count - 1 in the random order of one epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


class Trainer:
    """A model, its objective and its optimiser; every experiment derives its own."""

    model: torch.nn.Module
    objective: torch.nn.Module
    optimiser: torch.optim.Optimizer
    steps: int
    """Steps per epoch."""

    def step(self, epoch, place):
        """Take one step and return its loss; the data of a step depend only on epoch and place."""
        raise NotImplementedError

    def loss_inputs(self, epoch, place):
        """Arguments of the objective in a step, queries first; None where its memory is not measured."""

    def loss_memory(self):
        """Peak of the memory, in bytes, that the objective and its gradient need in a step; None if not measured."""
        inputs = self.loss_inputs(0, 0)
        if inputs is None:
            return None
        self.optimiser.zero_grad()
        queries = inputs[0].detach().requires_grad_()
        return peak_memory(lambda: self.objective(queries, *inputs[1:]).backward())

    def descend(self, loss, clip=None, clipped=None):
        """Take an optimiser step on the loss and return its value.

        clip: norm to which the gradient is clipped; clipped: the parameters whose gradient counts, None for all.
        """
        self.optimiser.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters() if clipped is None else clipped, clip)
        self.optimiser.step()
        return loss.item()

    def validate(self):
        """Validation metrics by name."""
        raise NotImplementedError

    def test(self):
        """Test metrics by name."""
        raise NotImplementedError

    def carried(self):
        """Tensors that one step passes to the next, by name."""
        return {}

    def carry(self, tensors):
        """Continue with tensors from `carried`."""


@dataclass
class Progress:
    """The progress of a run."""

    epoch: int = 0
    place: int = 0
    seconds: float = 0.0
    """Processor time of training steps, including refreshes of the sampler."""
    loss: float = 0.0
    """Sum over the steps of this epoch."""
    history: list = field(default_factory=list)
    """Validation metrics after each epoch."""
    best: dict = field(default_factory=dict)
    """Weights after the epoch with the best validation metric."""


def name_of(task, method, seed):
    """What the files of a run are called, before their ending."""
    return f"{task}-{method}-{seed}"


class Run:
    """One method and seed of a task, with its files in a directory."""

    def __init__(self, task, method, seed, folder):
        self.task, self.method, self.seed = task, method, seed
        self.name = name_of(task.name, method, seed)
        self.checkpoint, self.results = folder / f"{self.name}.pt", folder / f"{self.name}.json"

    def finished(self, epochs):
        """Whether results of this many epochs exist, or of a run that stopped; SystemExit for other settings."""
        if not self.results.exists():
            return False
        results = json.loads(self.results.read_text(encoding="utf-8"))
        self._check(results["settings"], self.results)
        return results["epochs"] >= epochs or self._stalled(results["history"])

    def _stalled(self, history):
        """Whether the validation metric has not improved for as many epochs as the task has patience."""
        patience = self.task.patience
        return patience is not None and bool(history) and len(history) - 1 - self._best(history) >= patience

    def train(self, epochs, report=None):
        """Train up to this many epochs, or until the task's patience ends, and write the results.

        An interrupted run continues.
        """
        trainer, at = self.resume()
        if at.epoch or at.place:
            print(f"{self.name}: continues at epoch {at.epoch + 1}, step {at.place + 1}", flush=True)
        saved = time.monotonic()
        while at.epoch < epochs and not self._stalled(at.history):
            while at.place < trainer.steps:
                started = time.process_time()
                at.loss += trainer.step(at.epoch, at.place)
                at.seconds += time.process_time() - started
                at.place += 1
                if report is not None:
                    report(f"{self.method} epoch {at.epoch + 1}", at.place, trainer.steps)
                if time.monotonic() - saved > EVERY:
                    self._save(trainer, at)
                    saved = time.monotonic()
                    self._report(at, trainer, f"step {at.place} of {trainer.steps}")
            self._close_epoch(trainer, at)
            self._save(trainer, at)
        trainer.model.load_state_dict(at.best)
        self._write(trainer, at)

    def resume(self):
        """The trainer as the run left it, or a new one, and the progress."""
        torch.manual_seed(self.seed)
        trainer, at = self.task.make(self.method, self.seed), Progress()
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self._check(state["settings"], self.checkpoint)
            for part in ("model", "objective", "optimiser"):
                getattr(trainer, part).load_state_dict(state[part])
            trainer.carry(state["carried"])
            torch.set_rng_state(state["random"])
            at = Progress(**state["progress"])
        return trainer, at

    def _check(self, settings, path):
        if settings != self.task.settings:
            raise SystemExit(
                f"{path} belongs to a run with other settings, {settings}; choose another directory with --out."
            )

    def _close_epoch(self, trainer, at):
        metrics = trainer.validate()
        loss = at.loss / trainer.steps
        at.history.append({"epoch": at.epoch + 1, "seconds": at.seconds, "loss": loss, **metrics})
        if self._best(at.history) == len(at.history) - 1:
            at.best = copy.deepcopy(trainer.model.state_dict())
        self._report(at, trainer, ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
        at.epoch, at.place, at.loss = at.epoch + 1, 0, 0.0

    def _best(self, history):
        values = [row[self.task.chosen_by] for row in history]
        return values.index((min if self.task.lower_is_better else max)(values))

    def _report(self, at, trainer, text):
        steps = at.epoch * trainer.steps + at.place
        print(
            f"{self.name}: epoch {at.epoch + 1}, {text}, loss {at.loss / at.place:.4f}, "
            f"{1000 * at.seconds / steps:.1f} ms per step, {at.seconds / 60:.1f} minutes",
            flush=True,
        )

    def _save(self, trainer, at):
        state = {part: getattr(trainer, part).state_dict() for part in ("model", "objective", "optimiser")}
        state |= {"carried": trainer.carried(), "random": torch.get_rng_state()}
        state |= {"progress": vars(at), "settings": self.task.settings}
        _replace(self.checkpoint, lambda path: torch.save(state, path))

    def _write(self, trainer, at):
        results = {
            "method": self.method,
            "seed": self.seed,
            "settings": self.task.settings,
            "epochs": at.epoch,
            "best": self._best(at.history) + 1,
            "seconds": at.seconds,
            "steps": at.epoch * trainer.steps,
            "threads": torch.get_num_threads(),
            "history": at.history,
            "test": trainer.test(),
            "memory": trainer.loss_memory(),
        }
        _replace(self.results, lambda path: path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8"))
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in results["test"].items())
        print(f"{self.name}: test {metrics} with the weights of epoch {results['best']}", flush=True)


def _replace(path, write):
    """Write a file so that an interruption leaves the old one in place."""
    partial = path.with_name(path.name + ".part")
    write(partial)
    os.replace(partial, path)
