"""What a run cannot go on from, and what is said of runs that come to something else."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from eigenshot.config import Config
from eigenshot.errors import CorruptFileError, UserError
from eigenshot.estimator import DeepLaplacianEigenmaps
from eigenshot.methods import Method
from eigenshot.methods.base import heeds_length
from eigenshot.methods.byol import Byol
from eigenshot.networks import Projector, create_backbone
from eigenshot.training.lengthen import lengthened_config
from eigenshot.training.loop import Interrupted
from tests.training.test_lengthen import LONG, ON_ARRAYS, SHORT, encoder_of, flat, train
from tests.training.test_pretrain import Recorder, tiny


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "short"
    train(flat(SHORT), folder)
    return folder


class TestWhatIsTold:
    def test_a_method_that_goes_by_the_length_of_the_run(self, tmp_path: Path) -> None:
        target = {"method__name": "byol", "method__options__predictor_width": 16}
        for schedule, told in (("cosine", True), ("constant", False)):
            changes = {**target, "method__options__schedule": schedule}
            train(flat(SHORT, **changes), tmp_path / schedule)
            longer = tmp_path / f"{schedule}-longer"
            recorder = train(flat(LONG, **changes), longer, lengthen=tmp_path / schedule)
            reason = "the method goes by how far a run is"
            assert any(note.endswith(reason) for note in recorder.notes) == told

    @pytest.mark.parametrize(("warmup", "batch"), [(1.5, 128), (0.5, 248), (1.0, 128), (0.5, 128)])
    def test_a_warm_up_that_did_not_fit(self, tmp_path: Path, warmup: float, batch: int) -> None:
        changes = {"optimizer__warmup_epochs": warmup, "training__batch_size": batch}
        epochs = 1 if warmup == 0.5 else SHORT  # half of it, of three steps and of five
        train(flat(epochs, **changes), tmp_path / "short")
        recorder = train(flat(LONG, **changes), tmp_path / "longer", lengthen=tmp_path / "short")
        train(flat(LONG, **changes), tmp_path / "anew")
        told = any(note.endswith("its warm-up was cut short") for note in recorder.notes)
        assert told == (encoder_of(tmp_path / "longer") != encoder_of(tmp_path / "anew"))

    def test_what_was_otherwise_is_told_again_of_what_goes_on_from_there(
        self, tmp_path: Path
    ) -> None:
        changes = {"optimizer__warmup_epochs": 1.5}
        train(flat(SHORT, **changes), tmp_path / "two")
        train(flat(LONG, **changes), tmp_path / "four", lengthen=tmp_path / "two")
        recorder = train(flat(6, **changes), tmp_path / "six", lengthen=tmp_path / "four")
        assert sum(note.endswith("its warm-up was cut short") for note in recorder.notes) == 1
        summary = json.loads((tmp_path / "six" / "summary.json").read_text())
        assert [len(entry["otherwise"]) for entry in summary["lengthened"]] == [1, 0]

    def test_a_class_derived_from_one_that_vouches_has_vouched_for_nothing(self) -> None:
        class Fading(Byol):
            def after_step(self, progress: float) -> None:
                self.momentum = progress
                super().after_step(progress)

        class Plain(Byol):
            pass

        class Vouching(Fading):
            goes_by_length = False

        class Counting(Method):
            def after_step(self) -> None:  # type: ignore[override]
                self.steps = 1

        class Foreign(nn.Module):
            def after_step(self, progress: float) -> None:
                self.progress = progress

        torch.manual_seed(0)
        backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
        projector = Projector(backbone.out_features, width=8)
        options: dict[str, Any] = {"schedule": "constant", "predictor_width": 8}
        heeds = {
            kind.__name__: heeds_length(kind(backbone, projector, **options))
            for kind in (Fading, Plain, Vouching)
        }
        assert heeds == {"Fading": True, "Plain": False, "Vouching": False}
        assert not heeds_length(Counting(backbone, projector))
        assert heeds_length(Foreign())
        assert not heeds_length(nn.Linear(2, 2))


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"optimizer__lr": 0.5}, "optimizer.lr: 0.15 in the run, 0.5 asked"),
            ({"training__seed": 1}, "training.seed: 0 in the run, 1 asked"),
            ({"training__epochs": 1}, "its rate fell from epoch 1.6 on, and that of 1 epochs"),
            ({"training__epochs": SHORT}, "it has 2 epochs already: ask for more --epochs"),
            ({"optimizer__schedule": "cosine"}, "optimizer.schedule: 'trapezoid' in the run"),
        ],
    )
    def test_other_settings(
        self, short: Path, tmp_path: Path, changes: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(UserError, match="cannot be lengthened so") as caught:
            train(flat(**{"epochs": LONG, **_named(changes)}), tmp_path / "longer", lengthen=short)
        assert words in str(caught.value)
        assert not (tmp_path / "longer").exists()

    def test_other_images(self, tmp_path: Path) -> None:
        images = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
        DeepLaplacianEigenmaps(epochs=2, out=tmp_path / "short", **ON_ARRAYS).fit(images)
        longer = DeepLaplacianEigenmaps(
            epochs=4, lengthen=tmp_path / "short", out=tmp_path / "longer"
        )
        with pytest.raises(UserError, match="the images: 32 of 'array' in the run, 32 of 'array'"):
            longer.fit(255 - images)
        assert not (tmp_path / "longer").exists()

    def test_another_network(self, tmp_path: Path) -> None:
        images = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
        options: dict[str, Any] = {**ON_ARRAYS, "backbone": nn.Conv2d(3, 8, 3)}
        DeepLaplacianEigenmaps(epochs=2, out=tmp_path / "short", **options).fit(images)
        wider = DeepLaplacianEigenmaps(
            epochs=4,
            backbone=nn.Conv2d(3, 12, 3),
            lengthen=tmp_path / "short",
            out=tmp_path / "longer",
        )
        with pytest.raises(UserError, match="was trained with another network: 'backbone"):
            wider.fit(images)
        assert not (tmp_path / "longer").exists()

    def test_a_state_of_another_moment(self, short: Path, tmp_path: Path) -> None:
        shutil.copytree(short, tmp_path / "short")
        checkpoints = tmp_path / "short" / "checkpoints"
        shutil.copyfile(checkpoints / "last.safetensors", checkpoints / "plateau.safetensors")
        with pytest.raises(CorruptFileError, match="steps, where that after 8 is needed"):
            train(flat(LONG), tmp_path / "longer", lengthen=tmp_path / "short")
        assert not (tmp_path / "longer").exists()

    def test_a_state_of_another_run(self, short: Path, tmp_path: Path) -> None:
        """Of another seed, and else the same: as many steps, the same shapes."""
        shutil.copytree(short, tmp_path / "short")
        train(flat(SHORT, training__seed=1), tmp_path / "other")
        plateau = Path("checkpoints", "plateau.safetensors")
        shutil.copyfile(tmp_path / "other" / plateau, tmp_path / "short" / plateau)
        with pytest.raises(CorruptFileError, match="is the state of another run; put the run's"):
            train(flat(LONG), tmp_path / "longer", lengthen=tmp_path / "short")
        assert not (tmp_path / "longer").exists()

    def test_another_number_of_processes(self, short: Path, tmp_path: Path) -> None:
        run = tmp_path / "short"
        shutil.copytree(short, run)
        told = json.loads((run / "data.json").read_text())
        (run / "data.json").write_text(json.dumps({**told, "processes": 2}))
        with pytest.raises(UserError, match="with as many, or start anew without --lengthen"):
            train(flat(LONG), tmp_path / "longer", lengthen=run)

    def test_a_reader_that_memory_chose_otherwise(
        self, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def streamed(config: Config, *_: object) -> Config:
            data = dataclasses.replace(config.data, reader="streamed", window=100)
            return dataclasses.replace(config, data=data)

        monkeypatch.setattr("eigenshot.training.pretrain.resolve_batch", streamed)
        with pytest.raises(
            UserError, match=r"data\.reader: 'resident' in the run, 'streamed' asked"
        ):
            train(flat(LONG), tmp_path / "longer", lengthen=short)

    def test_weights_from_elsewhere_beside_it(self, short: Path, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="leave out --init"):
            train(flat(LONG), tmp_path / "longer", lengthen=short, initial=short)

    def test_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="holds no run of eigenshot that could be lengthened"):
            lengthened_config(tmp_path, {})

    def test_a_cosine(self, tmp_path: Path) -> None:
        train(tiny(), tmp_path / "short")
        with pytest.raises(UserError, match="its rate falls along a cosine"):
            lengthened_config(tmp_path / "short", {"training.epochs": LONG})

    def test_one_whose_rate_falls_from_the_first_step_on(self, tmp_path: Path) -> None:
        train(flat(SHORT, optimizer__cooldown=1.0, optimizer__warmup_epochs=0.0), tmp_path / "run")
        with pytest.raises(UserError, match="its rate falls from the first step on"):
            lengthened_config(tmp_path / "run", {"training.epochs": LONG})

    def test_one_that_has_not_come_so_far(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            train(flat(SHORT), tmp_path / "short", recorder=Recorder(stop_at=4))
        with pytest.raises(UserError, match="the state from before its rate falls, is not there y"):
            lengthened_config(tmp_path / "short", {"training.epochs": LONG})

    def test_more_epochs_in_its_own_folder_and_how_to_have_them(self, short: Path) -> None:
        with pytest.raises(UserError, match=r"--lengthen .* goes on from it for more --ep"):
            train(flat(LONG), short, resume=True)
        with pytest.raises(UserError) as caught:
            train(flat(1), short, resume=True)
        assert "--lengthen" not in str(caught.value), "for that has no way to fewer"

    def test_a_recipe_beside_it(self, short: Path) -> None:
        with pytest.raises(UserError, match="leave out the recipe"):
            DeepLaplacianEigenmaps(recipe="glyphs", lengthen=short).fit("glyphs")

    def test_its_own_folder(self, short: Path) -> None:
        with pytest.raises(UserError, match="choose another --out"):
            train(flat(LONG), short, lengthen=short)


def _named(changes: dict[str, Any]) -> dict[str, Any]:
    """Epochs by the name that `flat` has for them."""
    return {"epochs" if key == "training__epochs" else key: v for key, v in changes.items()}
