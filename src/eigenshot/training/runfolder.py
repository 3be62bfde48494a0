"""A run's folder: settings, metrics, checkpoints, summary and the encoder."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from eigenshot.config import Config, differences
from eigenshot.configfile import config_from_table, to_toml
from eigenshot.encoder import FILE_NAME as ENCODER_NAME
from eigenshot.errors import CorruptFileError, UserError
from eigenshot.files import remove_leftovers, write_json, write_text


class RunFolder:
    """Names and rules of one run's files; nothing is written before `start`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.data_file = self.path / "data.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.encoder_file = self.path / ENCODER_NAME
        self.last = self.path / "checkpoints" / "last.safetensors"
        self.best = self.path / "checkpoints" / "best.safetensors"

    @property
    def finished(self) -> bool:
        """Both the encoder and the summary are there; the summary is written last."""
        return self.encoder_file.is_file() and self.summary_file.is_file()

    def check_free(self) -> None:
        """Refuse a folder that holds a run, or that cannot be one."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"'{self.path}' is a file; --out needs a folder")
        if self.config_file.exists() or self.last.exists() or self.encoder_file.exists():
            state = "a finished run" if self.finished else "an unfinished run"
            raise UserError(
                f"'{self.path}' already holds {state}; "
                "add --resume to go on with it, or choose another --out"
            )

    @property
    def started(self) -> bool:
        """Settings and images are known: what goes on here must agree with them."""
        return self.config_file.is_file() and self.data_file.is_file()

    def start(self, config: Config, data: dict[str, Any]) -> None:
        """Make the folder and echo the full settings into it; nothing of an older run stays."""
        try:
            self.last.parent.mkdir(parents=True, exist_ok=True)
            for file in (self.summary_file, self.encoder_file, self.best, self.metrics_file):
                file.unlink(missing_ok=True)
            write_text(self.config_file, to_toml(config))
            write_json(self.data_file, data)
        except OSError as error:
            raise UserError(f"cannot write to '{self.path}': {error.strerror}") from error

    def remove_leftovers(self) -> None:
        """Drop what killed writes have left behind."""
        for file in (*self.path.glob("*.*"), self.last, self.best):
            remove_leftovers(file.parent, file.name)

    def read_config(self) -> Config:
        """The settings that the run was started with."""
        try:
            return config_from_table(tomllib.loads(self.config_file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise CorruptFileError(f"cannot read '{self.config_file}': {error}") from error

    def check_same(self, config: Config, data: dict[str, Any]) -> None:
        """Refuse to go on with other settings or other images."""
        found = differences(self.read_config(), config)
        try:
            stored = json.loads(self.data_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CorruptFileError(f"cannot read '{self.data_file}': {error}") from error
        if stored.get("fingerprint") != data["fingerprint"]:
            found.append(
                f"the images: {stored.get('images')} of '{stored.get('name')}' in the run, "
                f"{data['images']} of '{data['name']}' asked, with other content"
            )
        if stored.get("initial") != data["initial"]:
            found.append("--init: other initial weights than in the run")
        if found:
            raise UserError(
                f"'{self.path}' was started with other settings; to go on with it, use the same "
                "ones, or choose another --out:\n  " + "\n  ".join(found)
            )

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with self.metrics_file.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All whole lines of metrics.jsonl; a line cut short by a crash is dropped."""
        records = []
        if self.metrics_file.is_file():
            for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
                try:
                    records.append(json.loads(line))
                except ValueError:
                    break
        return records

    def drop_metrics_after(self, step: int) -> None:
        """Forget what was logged after the checkpoint: it is about to happen again."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        write_text(self.metrics_file, "".join(json.dumps(record) + "\n" for record in kept))
