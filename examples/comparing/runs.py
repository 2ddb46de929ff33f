"""Training that can be stopped at any time: one checkpoint and one file of results for each method and seed."""

import copy
import json
import os
import time
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

EVERY = 180.0
"""Seconds between checkpoints inside an epoch."""


@lru_cache(maxsize=1)
def shuffled(count, seed, epoch):
    """The numbers 0 .. count - 1 in the order of one epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


class Trainee:
    """A model, its objective and its optimiser, and how an epoch of it goes; the examples derive theirs from this."""

    model: torch.nn.Module
    objective: torch.nn.Module
    optimiser: torch.optim.Optimizer
    steps: int
    """Steps in an epoch."""

    def step(self, epoch, place):
        """Take one step of the epoch, and give its loss; what is drawn of the data depends on the two numbers only."""
        raise NotImplementedError

    def descend(self, loss, clip=None):
        """Change the model against the gradient of the loss, clipped to a norm if one is given, and give its value."""
        self.optimiser.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimiser.step()
        return loss.item()

    def validate(self):
        """Figures by name, on the validation set."""
        raise NotImplementedError

    def test(self):
        """The same figures on the test set."""
        raise NotImplementedError

    def carried(self):
        """Tensors that a step hands to the next one, by name."""
        return {}

    def carry(self, tensors):
        """Take up what `carried` gave."""


@dataclass
class Progress:
    """How far a run is."""

    epoch: int = 0
    place: int = 0
    seconds: float = 0.0
    """Processor time in training steps, refreshing of the sampler included."""
    loss: float = 0.0
    """Sum over the steps of this epoch."""
    history: list = field(default_factory=list)
    """Figures on the validation set after each epoch."""
    best: dict = field(default_factory=dict)
    """The weights after the epoch that was best on the validation set."""


class Run:
    """One method and seed of a task, with its files in a folder."""

    def __init__(self, task, method, seed, folder):
        self.task, self.method, self.seed = task, method, seed
        self.name = f"{task.name}-{method}-{seed}"
        self.checkpoint, self.results = folder / f"{self.name}.pt", folder / f"{self.name}.json"

    def finished(self, epochs):
        """Whether the results of so many epochs are there; SystemExit where they are those of another task."""
        if not self.results.exists():
            return False
        found = json.loads(self.results.read_text(encoding="utf-8"))
        self._check(found["settings"], self.results)
        return found["epochs"] >= epochs

    def train(self, epochs, report=None):
        """Train from where the run stopped up to so many epochs, and write the results."""
        trainee, at = self.begin()
        if at.epoch or at.place:
            print(f"{self.name}: goes on at epoch {at.epoch + 1}, step {at.place + 1}", flush=True)
        saved = time.monotonic()
        while at.epoch < epochs:
            while at.place < trainee.steps:
                started = time.process_time()
                at.loss += trainee.step(at.epoch, at.place)
                at.seconds += time.process_time() - started
                at.place += 1
                if report is not None:
                    report(f"{self.method} epoch {at.epoch + 1}", at.place, trainee.steps)
                if time.monotonic() - saved > EVERY:
                    self._save(trainee, at)
                    saved = time.monotonic()
                    self._say(at, trainee, f"step {at.place} of {trainee.steps}")
            self._close_epoch(trainee, at)
            self._save(trainee, at)
        trainee.model.load_state_dict(at.best)
        self._write(trainee, at)

    def begin(self):
        """The trainee where the run stopped, or as new, and how far it is."""
        torch.manual_seed(self.seed)
        trainee, at = self.task.make(self.method, self.seed), Progress()
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self._check(state["settings"], self.checkpoint)
            for part in ("model", "objective", "optimiser"):
                getattr(trainee, part).load_state_dict(state[part])
            trainee.carry(state["carried"])
            torch.set_rng_state(state["random"])
            at = Progress(**state["progress"])
        return trainee, at

    def _check(self, settings, path):
        if settings != self.task.settings:
            raise SystemExit(f"{path} is of a run with other settings, {settings}; name another folder with --out.")

    def _close_epoch(self, trainee, at):
        figures = trainee.validate()
        loss = at.loss / trainee.steps
        at.history.append({"epoch": at.epoch + 1, "seconds": at.seconds, "loss": loss, **figures})
        if self._best(at.history) == len(at.history) - 1:
            at.best = copy.deepcopy(trainee.model.state_dict())
        self._say(at, trainee, ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
        at.epoch, at.place, at.loss = at.epoch + 1, 0, 0.0

    def _best(self, history):
        values = [row[self.task.chosen_by] for row in history]
        return values.index((min if self.task.lower_is_better else max)(values))

    def _say(self, at, trainee, what):
        steps = at.epoch * trainee.steps + at.place
        print(
            f"{self.name}: epoch {at.epoch + 1}, {what}, loss {at.loss / at.place:.4f}, "
            f"{1000 * at.seconds / steps:.1f} ms a step, {at.seconds / 60:.1f} minutes",
            flush=True,
        )

    def _save(self, trainee, at):
        state = {part: getattr(trainee, part).state_dict() for part in ("model", "objective", "optimiser")}
        state |= {"carried": trainee.carried(), "random": torch.get_rng_state()}
        state |= {"progress": vars(at), "settings": self.task.settings}
        _replace(self.checkpoint, lambda path: torch.save(state, path))

    def _write(self, trainee, at):
        found = {
            "method": self.method,
            "seed": self.seed,
            "settings": self.task.settings,
            "epochs": at.epoch,
            "best": self._best(at.history) + 1,
            "seconds": at.seconds,
            "steps": at.epoch * trainee.steps,
            "threads": torch.get_num_threads(),
            "history": at.history,
            "test": trainee.test(),
        }
        _replace(self.results, lambda path: path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8"))
        figures = ", ".join(f"{name} {value:.4g}" for name, value in found["test"].items())
        print(f"{self.name}: test {figures} with the weights of epoch {found['best']}", flush=True)


def _replace(path, write):
    """Write a file so that a stop in the middle leaves the old one."""
    part = path.with_name(path.name + ".part")
    write(part)
    os.replace(part, path)
