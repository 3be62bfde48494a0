"""Longer runs: what a run did before its rate began to fall, a longer one would have done too.

Every random draw is a function of seed and step, and until the rate of a trapezoid falls nothing
else depends on how long the run is. From the state of that moment a run of more epochs therefore
goes on to the same encoder that it would have come to from its own first step.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from eigenshot.config import Config, differences
from eigenshot.configfile import load_config
from eigenshot.errors import CorruptFileError, UserError, reason_of
from eigenshot.methods.base import heeds_length
from eigenshot.reporter import Reporter
from eigenshot.tensorfile import Content, read_tensors
from eigenshot.training.checkpoint import FORMAT, check_owner, link_or_copy
from eigenshot.training.choices import recipe_for
from eigenshot.training.course import Course, stretched
from eigenshot.training.runfolder import RunFolder

# What a longer run may have otherwise: the moments of its changes, and what happens at its end.
_OF_LENGTH = (
    "training.epochs",
    "training.resolution",
    "training.encoder_size",
    "training.statistics",
    "optimizer.cooldown",
)
_MORE = "ask for more --epochs, which are counted from the first on"


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
        shorter = cls(folder, config)
        if shorter.step == 0:
            raise UserError(
                f"'{path}' cannot be lengthened: its rate falls from the first step on, so nothing "
                "of it is the same in a longer run; --init starts a new run from its encoder"
            )
        if not folder.plateau.is_file():
            reason = (
                "its checkpoint.plateau is off, so nothing was kept of the time before its rate "
                "fell"
                if config.checkpoint.plateau == "off"
                else f"'{folder.plateau}', the state from before its rate falls, is not there"
                + ("; put it back" if folder.finished else " yet; go on with it first, by --resume")
            )
            raise UserError(f"'{path}' cannot be lengthened: {reason}")
        return shorter

    @property
    def step(self) -> int:
        """How many steps a longer run has behind it."""
        return self._course(self.config).schedule.plateau_end

    def obstacles(self, config: Config) -> list[str]:
        """Why a run with these settings cannot go on from this one, a text each."""
        found = [
            text
            for text in differences(self.config, config)
            if text.partition(":")[0] not in _OF_LENGTH
        ]
        own, asked = self._course(self.config), self._course(config)
        falls = asked.schedule.plateau_end
        if falls < self.step:
            return [
                *found,
                f"its rate fell from epoch {own.epochs(self.step):g} on, and that of "
                f"{config.training.epochs} epochs would from epoch {asked.epochs(falls):g} on: "
                + _MORE,
            ]
        if config.training.epochs == self.config.training.epochs and falls == self.step:
            found.append(f"it has {config.training.epochs} epochs already: {_MORE}")
        if own.size_changes(until=self.step) != asked.size_changes(until=self.step):
            there, here = (each.sizes_in_words(until=self.step) for each in (own, asked))
            found.append(
                f"training.resolution: {there} in the run, {here} asked, before its rate fell"
            )
        return found

    def is_too_short(self, config: Config) -> bool:
        """Whether the rate of a run with these settings falls before this one's did."""
        return self._course(config).schedule.plateau_end < self.step

    def otherwise(self, config: Config, method: nn.Module) -> list[str]:
        """Why a run that goes on from here is not what it would have been from its own first step.

        A text for each reason; none where both come to the same.
        """
        return [*self._inherited(), *self._otherwise(config, method, self._state()[1])]

    def check(self, config: Config) -> None:
        """Refuse settings with which a run cannot go on from this one."""
        found = self.obstacles(config)
        if len(found) == 1 and found[0].endswith(_MORE):
            raise UserError(f"'{self.folder.path}' cannot be lengthened so: {found[0]}")
        if found:
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
        tensors, header = self._state()
        self._check_fits(tensors, method)
        step = int(header["step"])
        otherwise = self._otherwise(config, method, header)
        own = self.folder.read_data()
        try:
            summary = self.folder.read_summary()
        except CorruptFileError:  # not finished, or damaged since
            summary = own.get("sessions", [{}])[-1]
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
            header["run"] = folder.mark
            if not self._hand_over_best(folder, header):
                header["best"] = [None, -1, ""]
            Content(FORMAT, tensors, header).write(folder.last)
        except OSError as error:
            raise UserError(f"cannot write to '{folder.path}': {reason_of(error)}") from error
        for reason in dict.fromkeys([*self._inherited(), *otherwise]):
            reporter.note(f"not quite as a run of this length from its start: {reason}")

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and header of the state that is kept, which must be of the right moment."""
        tensors, header = read_tensors(self.folder.plateau, kind=FORMAT)
        check_owner(self.folder.plateau, header, self.folder.mark)
        if header["step"] != self.step:
            raise CorruptFileError(
                f"'{self.folder.plateau}' is a state after {header['step']} steps, where that "
                f"after {self.step} is needed, from before the rate fell; put the run's own back"
            )
        return tensors, header

    def _inherited(self) -> list[str]:
        """What is otherwise in this run already, for it went on from others."""
        entries = self.folder.read_data().get("lengthened", [])
        return [reason for entry in entries for reason in entry["otherwise"]]

    def _check_fits(self, tensors: Mapping[str, Tensor], method: nn.Module) -> None:
        """Refuse another network than the run's, as a module of the caller's may be."""
        stored = {
            name.removeprefix("method."): tuple(value.shape)
            for name, value in tensors.items()
            if name.startswith("method.")
        }
        wanted = {name: tuple(value.shape) for name, value in method.state_dict().items()}
        if stored != wanted:
            names = sorted(stored.keys() | wanted.keys())
            name = next(n for n in names if stored.get(n) != wanted.get(n))
            there, here = (shapes.get(name, "missing") for shapes in (stored, wanted))
            raise UserError(
                f"'{self.folder.path}' was trained with another network: '{name}' is {there} there "
                f"and {here} here; lengthen it with its own"
            )

    def _hand_over_best(self, folder: RunFolder, header: Mapping[str, Any]) -> bool:
        """Whether the best state by then could be handed over: one of later may have replaced it.

        The state itself may be the best; then the loop keeps it.
        """
        step = header["best"][1]
        if step == header["step"]:
            return True
        if step < 0 or not self.folder.best.is_file():
            return False
        with contextlib.suppress(CorruptFileError):
            if read_tensors(self.folder.best, kind=FORMAT)[1]["step"] == step:
                link_or_copy(self.folder.best, folder.best)
                return True
        return False

    def _otherwise(self, config: Config, method: nn.Module, header: Mapping[str, Any]) -> list[str]:
        found = []
        if header.get("shrunk"):
            found.append("its weights had been rounded to half precision, and momentum begins anew")
        own, asked = (self._course(each).schedule for each in (self.config, config))
        if own.warmup_steps != asked.warmup_steps:
            found.append("its warm-up was cut short")
        if heeds_length(method):
            found.append("the method goes by how far a run is")
        return found

    def _course(self, config: Config) -> Course:
        """That of a run with these settings on these images, in batches of this run's size.

        Another size of batches is an obstacle, and the settings asked for may leave it open.
        """
        batch = self.config.training.batch_size
        training = dataclasses.replace(config.training, batch_size=batch)
        images = int(self.folder.read_data()["images"])
        return Course(dataclasses.replace(config, training=training), images)


def lengthened_config(run: str | Path, overrides: Mapping[str, Any]) -> Config:
    """The settings of a run in a folder, with ``overrides`` that make it longer.

    Views change their size where they did as long as the rate had not begun to fall, and from there
    on at the same share of the fall, unless ``training.resolution`` is among the overrides.
    """
    shorter = Shorter.at(run)
    config = load_config(str(shorter.folder.config_file), overrides)
    if "training.resolution" in overrides or shorter.is_too_short(config):
        return config
    resolution = stretched(shorter.config, config)
    return dataclasses.replace(
        config, training=dataclasses.replace(config.training, resolution=resolution)
    )


def settings_for(
    data: Any,
    overrides: Mapping[str, Any],
    *,
    recipe: str | None = None,
    lengthen: str | Path | None = None,
    begun: str | Path | None = None,
) -> Config:
    """The settings of a run on ``data``: of a recipe, or of the run that it goes on from.

    Where the run has ``begun`` in its folder, that has them, wherever the shorter one is by now.
    """
    if lengthen is None:
        return load_config(recipe or recipe_for(data), overrides)
    if recipe is not None:
        raise UserError("a run that is lengthened has settings of its own: leave out the recipe")
    own = None if begun is None else RunFolder(begun)
    if own is not None and own.started:
        return load_config(str(own.config_file), overrides)
    return lengthened_config(lengthen, overrides)
