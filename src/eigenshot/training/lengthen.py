"""Longer runs: what a run did before its rate began to fall, a longer one would have done too.

Every random draw is a function of seed and step, and until the rate of a trapezoid falls nothing
else depends on how long the run is. From the state of that moment a run of more epochs therefore
goes on to the same encoder that it would have come to from its own first step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from eigenshot.config import Config, differences
from eigenshot.configfile import load_config
from eigenshot.errors import UserError, reason_of
from eigenshot.options import parameters_of
from eigenshot.reporter import Reporter
from eigenshot.tensorfile import Content, read_tensors
from eigenshot.training.checkpoint import FORMAT
from eigenshot.training.choices import recipe_for
from eigenshot.training.runfolder import RunFolder

# What a longer run may have otherwise: the moments of its changes, and what happens at its end.
_OF_LENGTH = (
    "training.epochs",
    "training.resolution",
    "training.encoder_size",
    "training.statistics",
    "optimizer.cooldown",
)
_EXACT = 1e-9  # of an epoch


@dataclass(frozen=True)
class Shorter:
    """A run that longer ones can go on from, at the end of its plateau."""

    folder: RunFolder
    config: Config

    @classmethod
    def at(cls, path: str | Path) -> Shorter:
        """The run in a folder; one that nothing can go on from is a `UserError`."""
        folder = RunFolder(path)
        if not folder.started:
            raise UserError(f"'{path}' holds no run of eigenshot that could be lengthened")
        config = folder.read_config()
        if config.optimizer.schedule != "trapezoid":
            raise UserError(
                f"'{path}' cannot be lengthened: its rate falls along a cosine, along which a "
                "longer run has other rates from the start; only runs with "
                "optimizer.schedule=trapezoid can be. --init starts a new run from its encoder"
            )
        if not folder.plateau.is_file():
            reason = (
                "its checkpoint.plateau is off, so nothing was kept of the time before its rate "
                "fell"
                if config.checkpoint.plateau == "off"
                else f"'{folder.plateau}', the state from before its rate falls, is not there"
                + ("" if folder.finished else " yet")
            )
            raise UserError(f"'{path}' cannot be lengthened: {reason}")
        return cls(folder, config)

    @property
    def epochs(self) -> float:
        """How many epochs a longer run has behind it."""
        return _plateau_epochs(self.config)

    def obstacles(self, config: Config) -> list[str]:
        """Why a run with these settings cannot go on from this one, a text each."""
        found = [
            text
            for text in differences(self.config, config)
            if text.partition(":")[0] not in _OF_LENGTH
        ]
        own = self.epochs
        epochs, new = config.training.epochs, _plateau_epochs(config)
        if new < own - _EXACT:
            found.append(
                f"its rate fell from epoch {own:g} on, and that of {epochs} epochs would from "
                f"epoch {new:g} on: ask for more --epochs"
            )
        elif epochs == self.config.training.epochs and new < own + _EXACT:
            found.append(f"it has {epochs} epochs already: ask for more --epochs")
        sizes = [_changes(each, until=own) for each in (self.config, config)]
        if sizes[0] != sizes[1]:
            found.append(
                f"training.resolution: {_listed(sizes[0])} in the run, {_listed(sizes[1])} asked, "
                "before its rate fell"
            )
        return found

    def check(self, config: Config) -> None:
        """Refuse settings with which a run cannot go on from this one."""
        if found := self.obstacles(config):
            raise UserError(
                f"'{self.folder.path}' cannot be lengthened so; use its own settings, or start "
                "anew without --lengthen:\n  " + "\n  ".join(found)
            )

    def check_images(self, identity: Mapping[str, Any]) -> None:
        """Refuse other images than it learned from."""
        weights = {"initial": self.folder.read_data().get("initial")}
        self.folder.check_data({**identity, **weights}, "or start anew without --lengthen")

    def hand_over(
        self,
        folder: RunFolder,
        config: Config,
        identity: Mapping[str, Any],
        method: nn.Module,
        reporter: Reporter,
    ) -> None:
        """Make ``folder`` that of a run with ``config``, as far as this one is the same.

        Why it may not end where it would have from a first step of its own is told and kept.
        """
        tensors, header = read_tensors(self.folder.plateau, kind=FORMAT)
        step = int(header["step"])
        otherwise = self._otherwise(config, header, method)
        own = self.folder.read_data()
        summary = self.folder.read_summary()
        history = {
            "epochs": self.config.training.epochs,
            "step": step,
            "commit": summary.get("commit"),
            "hardware": summary.get("hardware"),
            "initial": own.get("initial"),
            "otherwise": otherwise,
        }
        lengthened = [*own.get("lengthened", []), history]
        folder.start(config, {**identity, "lengthened": lengthened})
        try:
            folder.keep_metrics([r for r in self.folder.metrics() if r["step"] <= step])
            # The best so far may have been of a later moment than this.
            Content(FORMAT, tensors, {**header, "best": [None, -1, ""]}).write(folder.last)
        except OSError as error:
            raise UserError(f"cannot write to '{folder.path}': {reason_of(error)}") from error
        for reason in otherwise:
            reporter.note(f"not quite as a run of this length from its start: {reason}")

    def _otherwise(self, config: Config, header: Mapping[str, Any], method: nn.Module) -> list[str]:
        found = []
        if header.get("shrunk"):
            found.append("its weights had been rounded to half precision, and momentum begins anew")
        if _warmup_epochs(self.config) != _warmup_epochs(config):
            found.append("its warm-up was cut short")
        told = bool(parameters_of(getattr(method, "after_step", bool)))  # of one without our base
        if getattr(method, "goes_by_length", told):
            found.append("the method goes by how far a run is")
        return found


def lengthened_config(run: str | Path, overrides: Mapping[str, Any]) -> Config:
    """The settings of a run in a folder, with ``overrides`` that make it longer.

    Views change their size where they did as long as the rate had not begun to fall, and from there
    on at the same share of the fall, unless ``training.resolution`` is among the overrides.
    """
    shorter = Shorter.at(run)
    config = load_config(str(shorter.folder.config_file), overrides)
    if "training.resolution" in overrides:
        return config
    resolution = _stretched(shorter.config, config)
    return dataclasses.replace(
        config, training=dataclasses.replace(config.training, resolution=resolution)
    )


def settings_for(
    data: Any,
    overrides: Mapping[str, Any],
    *,
    recipe: str | None = None,
    lengthen: str | Path | None = None,
) -> Config:
    """The settings of a run on ``data``: of a recipe, or of the run that it goes on from."""
    if lengthen is None:
        return load_config(recipe or recipe_for(data), overrides)
    if recipe is not None:
        raise UserError("a run that is lengthened has settings of its own: leave out the recipe")
    return lengthened_config(lengthen, overrides)


def _warmup_epochs(config: Config) -> float:
    return min(config.optimizer.warmup_epochs, config.training.epochs / 2)


def _plateau_epochs(config: Config) -> float:
    """Epochs until the rate of a trapezoid falls."""
    return max(_warmup_epochs(config), config.training.epochs * (1 - config.optimizer.cooldown))


def _changes(config: Config, *, until: float) -> list[tuple[float, int]]:
    """Epochs before ``until`` from which on views have another side, and that side."""
    epochs = config.training.epochs
    stages = [(share * epochs, side) for share, side in config.training.resolution]
    return [(round(epoch, 8), side) for epoch, side in stages if epoch < until - _EXACT]


def _listed(changes: list[tuple[float, int]]) -> str:
    texts = [f"{side} px from epoch {epoch:g} on" for epoch, side in changes]
    return ", ".join(texts) or "the images' own size"


def _stretched(old: Config, new: Config) -> tuple[tuple[float, int], ...]:
    """The sizes of the views of ``old``, in shares of a run with the length of ``new``."""
    ratio = old.training.epochs / new.training.epochs
    falls = 1 - old.optimizer.cooldown
    stages = []
    for share, side in old.training.resolution:
        if share < falls - _EXACT:
            moved = share * ratio
        else:
            along = (share - falls) / old.optimizer.cooldown
            moved = 1 - new.optimizer.cooldown * (1 - along)
        stages.append((round(moved, 12), side))
    return tuple(stages)
