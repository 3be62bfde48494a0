"""A run's folder: settings, metrics, checkpoints, summary and the encoder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eigenshot.config import Config, differences
from eigenshot.configfile import config_from_table, to_toml
from eigenshot.data.reading.locks import locked
from eigenshot.encoder import FILE_NAME as ENCODER_NAME
from eigenshot.errors import CorruptFileError, UserError, reason_of
from eigenshot.files import remove_leftovers, why_no_folder, write_json, write_text

_MARK = "eigenshot_run"
# What is known of the images and of what came before, as far as it decides what is learned.
_DECIDING = ("fingerprint", "initial", "processes", "lengthened")


class RunFolder:
    """Names and rules of one run's files; nothing is written before `start`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.config_file = self.path / "config.toml"
        self.data_file = self.path / "data.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.encoder_file = self.path / ENCODER_NAME
        self.last = self.path / "checkpoints" / "last.safetensors"
        self.best = self.path / "checkpoints" / "best.safetensors"
        self.plateau = self.path / "checkpoints" / "plateau.safetensors"
        self.board = self.path / "tensorboard"

    @property
    def files(self) -> tuple[Path, ...]:
        """All that a run writes, whether it is there or not."""
        logs = (self.config_file, self.data_file, self.metrics_file, self.summary_file)
        return (*logs, self.encoder_file, self.last, self.best, self.plateau)

    @property
    def finished(self) -> bool:
        """Both the encoder and the summary are there; the summary is written last."""
        return self.encoder_file.is_file() and self.summary_file.is_file()

    def check(self, resume: bool) -> None:
        """Refuse a folder that cannot be written, holds other things, or a run unless asked."""
        if trouble := why_no_folder(self.path):
            raise UserError(f"{trouble}; choose another --out")
        if not self.path.exists() or self._is_bare():
            return
        if not self.read_data().get(_MARK):
            raise UserError(
                f"'{self.path}' is not empty and holds no run of eigenshot; "
                "choose a new folder for --out, so that nothing in it is lost"
            )
        if self.last.is_file() and not self.config_file.is_file():
            raise UserError(
                f"'{self.config_file}' is missing, and with it what this run was started with; "
                "put it back to go on, or choose another --out"
            )
        if not resume and self.finished:
            raise UserError(
                f"'{self.path}' already holds a finished run; choose another --out (out= in Python)"
            )
        if not resume:
            raise UserError(
                f"'{self.path}' already holds an unfinished run; go on with it by --resume "
                "(resume=True in Python), or choose another --out"
            )

    def _is_bare(self) -> bool:
        """Nothing is inside but what a run that was killed at its very start may leave."""
        inside = [entry for entry in self.path.iterdir() if not entry.name.startswith(".")]
        checkpoints = self.last.parent
        return inside in ([], [checkpoints]) and not (
            checkpoints.exists() and any(checkpoints.iterdir())
        )

    def read_data(self) -> dict[str, Any]:
        """What is known of the images; empty where that cannot be read."""
        try:
            stored = json.loads(self.data_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stored if isinstance(stored, dict) else {}

    @property
    def mark(self) -> str | None:
        """What tells the run's states from those of others; None of runs that had no such mark."""
        return self.read_data().get("run")

    @property
    def started(self) -> bool:
        """Settings and images are known: what goes on here must agree with them."""
        return self.config_file.is_file() and bool(self.read_data().get(_MARK))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training here; while one does, this is a `Busy`."""
        with contextlib.ExitStack() as held:
            held.callback(_remove_if_empty, self.path)
            work = f"training in '{self.path}'; wait until it has ended, or choose another --out"
            try:
                held.enter_context(locked(self.path / ".run", work, wait=False))
            except OSError as error:
                raise self._not_written(error) from error
            # Only of one's own run, and while it is: the empty folder may be another's to fill.
            held.callback(_remove_if_empty, self.last.parent)
            yield

    def _not_written(self, error: OSError) -> UserError:
        return UserError(f"cannot write to '{self.path}': {error.strerror}")

    def start(self, config: Config, data: dict[str, Any]) -> None:
        """Make the folder and echo the full settings into it; nothing of an older run stays."""
        try:
            self.last.parent.mkdir(parents=True, exist_ok=True)
            earlier = (self.summary_file, self.encoder_file, self.best, self.plateau)
            for file in (*earlier, self.metrics_file):
                file.unlink(missing_ok=True)
            shutil.rmtree(self.board, ignore_errors=True)
            known = {_MARK: True, "run": _mark_of(config, data), **data}
            write_json(self.data_file, known)  # first: it says whose folder this is
            write_text(self.config_file, to_toml(config))
        except OSError as error:
            raise self._not_written(error) from error

    def begin_session(self, environment: Mapping[str, Any]) -> None:
        """Keep by what the run is made from here on, where that was not known or was otherwise."""
        known = self.read_data()
        sessions = known.get("sessions", [])
        if not sessions or sessions[-1] != environment:
            with self.written():
                write_json(self.data_file, {**known, "sessions": [*sessions, environment]})

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """What keeps the folder from being written leaves the last checkpoint as it is."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot write to '{self.path}': {reason_of(error)}; "
                + (
                    "what was saved last stands, and --resume goes on from it"
                    if self.last.is_file()
                    else "no checkpoint had been written yet"
                )
            ) from error

    def remove_leftovers(self) -> None:
        """Drop what killed writes have left behind."""
        for file in (*self.path.glob("*.*"), self.last, self.best, self.plateau):
            remove_leftovers(file.parent, file.name)

    def read_config(self) -> Config:
        """The settings that the run was started with."""
        try:
            return config_from_table(tomllib.loads(self.config_file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise CorruptFileError(f"cannot read '{self.config_file}': {error}") from error

    def read_summary(self) -> dict[str, Any]:
        """What a finished run tells of itself."""
        try:
            summary: dict[str, Any] = json.loads(self.summary_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CorruptFileError(f"cannot read '{self.summary_file}': {error}") from error
        return summary

    def check_settings(self, config: Config) -> None:
        """Refuse to go on with other settings."""
        stored = self.read_config()
        found = differences(stored, config)
        longer = "or choose another --out"
        if self.plateau.is_file() and stored.training.epochs < config.training.epochs:
            longer += f", where --lengthen {self.path} goes on from it for more --epochs"
        self._refuse(found, longer)

    def check_data(self, data: Mapping[str, Any], way_out: str = "or choose another --out") -> None:
        """Refuse to go on with other images or initial weights, with a ``way_out`` in words."""
        stored, found = self.read_data(), []
        if stored.get("fingerprint") != data["fingerprint"]:
            found.append(
                f"the images: {stored.get('images')} of '{stored.get('name')}' in the run, "
                f"{data['images']} of '{data['name']}' asked, with other content"
            )
        if stored.get("initial") != data["initial"]:
            found.append(
                "--init: the run had none"
                if stored.get("initial") is None
                else "--init: the run began with other weights"
                if data["initial"] is not None
                else "--init: the run began with weights, which are to be named again"
            )
        self._refuse(found, way_out)

    def _refuse(self, found: list[str], way_out: str) -> None:
        if found:
            raise UserError(
                f"'{self.path}' was started with other settings; to go on with it, use the same "
                f"ones, {way_out}:\n  " + "\n  ".join(found)
            )

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with self.written(), self.metrics_file.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl up to one that is no record, as a crash may cut one short."""
        records: list[dict[str, Any]] = []
        if self.metrics_file.is_file():
            for line in self.metrics_file.read_bytes().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    break
                if not isinstance(record, dict) or not {"epoch", "step"} <= record.keys():
                    break
                records.append(record)
        return records

    def drop_metrics_after(self, step: int) -> None:
        """Forget what was logged after the checkpoint: it is about to happen again."""
        self.keep_metrics([record for record in self.metrics() if record["step"] <= step])

    def keep_metrics(self, records: list[dict[str, Any]]) -> None:
        """Let metrics.jsonl have these records and no others."""
        with self.written():
            write_text(self.metrics_file, "".join(json.dumps(record) + "\n" for record in records))


def _mark_of(config: Config, data: Mapping[str, Any]) -> str:
    """A short text that is the same for runs that learn the same."""
    deciding = [config.lasting(), {key: data.get(key) for key in _DECIDING}]
    content = json.dumps(deciding, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not empty, or never made
        folder.rmdir()
