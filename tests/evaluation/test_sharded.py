"""Two processes that evaluate together get exactly what one gets alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eigenshot.collective import rank
from eigenshot.data.source import ArraySource, Source
from eigenshot.encoder import Encoder, Preprocessing
from eigenshot.evaluation.features import extract_features
from eigenshot.evaluation.fewshot import evaluate_fewshot
from eigenshot.evaluation.selection import Selected, select_settings
from eigenshot.evaluation.sharded import Rows, from_first, put_together, share
from eigenshot.networks import create_backbone
from tests.test_collective import Results, on_two_ranks

IMAGES = 37
TASKS: dict[str, int] = {"ways": 3, "shots": 2, "queries": 5, "episodes": 25}
# Five tasks, of 21 rows of 8 features in float32 each.
PIECES = {"cpu": 5 * 21 * 8 * 4}
CLASSIFIERS = ("logistic", "nearest-centroid", "optimal-transport")


def encoder() -> Encoder:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", in_channels=1, widths=(4, 4, 4, 8)).eval()
    shape = Preprocessing(16, 1, (0.5,), (0.5,))
    return Encoder(backbone, shape, {"name": "conv4", "options": {"widths": [4, 4, 4, 8]}})


def images() -> ArraySource:
    generator = np.random.default_rng(0)
    return ArraySource.from_array(generator.integers(0, 256, (IMAGES, 16, 16), dtype=np.uint8))


def features() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    labels = np.repeat(np.arange(6), 12)
    return generator.normal(size=(len(labels), 8)) + labels[:, None] / 3, labels


def evaluate(classifier: str, **options: Any) -> np.ndarray:
    """Accuracies of single episodes, from tables in which a piece is five of them."""
    return evaluate_fewshot(*features(), classifier=classifier, **TASKS, **options).per_episode


def select(**options: Any) -> Selected:
    """Settings chosen on these tables."""
    return select_settings(*features(), strengths=(0.1, 1.0), **TASKS, **options)


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigenshot.evaluation.fewshot._CHUNK_BYTES", PIECES)


def on_rank(folder: Path) -> Results:
    from eigenshot.evaluation import fewshot, sharded

    fewshot._CHUNK_BYTES = PIECES
    # The second process would find nothing in its cache, and must not look.
    os.environ["EIGENSHOT_CACHE"] = str(folder / f"cache of {rank()}")
    computed = extract_features(encoder(), images(), batch_size=8, together=True)
    cached = extract_features(encoder(), images(), batch_size=8, together=True)
    small = extract_features(encoder(), images(), cache=False, together=True)
    rows = np.arange(14.0).reshape(7, 2)
    part = share(7, 2)
    whole = put_together(rows[part], 7, 2)
    sharded._ROWS_AT_ONCE = 3  # in pieces, of which the last is shorter
    pieces = put_together(rows[part], 7, 2)
    alone = from_first(rows.astype(np.float32) if rank() == 0 else None, (7, 2))
    assert alone is not None
    return {
        "computed": torch.from_numpy(computed),
        "cached": torch.from_numpy(cached),
        "small": torch.from_numpy(small),
        "part": (part.start, part.stop),
        "rows": torch.from_numpy(whole),
        "pieces": torch.from_numpy(pieces),
        "few": torch.from_numpy(put_together(rows[share(1)], 1)),
        "from first": torch.from_numpy(alone),
        "nothing": from_first(None, (7, 2)) is None,
        "episodes": {name: torch.from_numpy(evaluate(name, together=True)) for name in CLASSIFIERS},
        "alone": torch.from_numpy(evaluate("logistic")),
        "selected": select(together=True).tried,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder: Path) -> list[Results]:
    return on_two_ranks(on_rank, folder, folder)


class TestTwoProcesses:
    def test_features_are_those_of_one_process(self, results: list[Results]) -> None:
        expected = extract_features(encoder(), images(), batch_size=8, cache=False)
        for found in results:
            np.testing.assert_array_equal(found["computed"].numpy(), expected)
            np.testing.assert_array_equal(found["cached"].numpy(), expected)

    def test_images_of_a_single_batch_are_not_split(self, results: list[Results]) -> None:
        expected = extract_features(encoder(), images(), cache=False)
        for found in results:
            np.testing.assert_array_equal(found["small"].numpy(), expected)

    def test_only_the_first_has_a_cache(self, results: list[Results], folder: Path) -> None:
        assert len(list((folder / "cache of 0" / "features").iterdir())) == 1
        assert not (folder / "cache of 1").exists()

    @pytest.mark.usefixtures("_small_pieces")
    @pytest.mark.parametrize("classifier", CLASSIFIERS)
    def test_episodes_are_those_of_one_process_in_their_order(
        self, results: list[Results], classifier: str
    ) -> None:
        expected = evaluate(classifier)
        assert len(np.unique(expected)) > 3
        for found in results:
            np.testing.assert_array_equal(found["episodes"][classifier].numpy(), expected)

    @pytest.mark.usefixtures("_small_pieces")
    def test_one_may_evaluate_without_the_other(self, results: list[Results]) -> None:
        for found in results:
            np.testing.assert_array_equal(found["alone"].numpy(), evaluate("logistic"))

    @pytest.mark.usefixtures("_small_pieces")
    def test_settings_are_chosen_as_by_one_process(self, results: list[Results]) -> None:
        for found in results:
            assert found["selected"] == select().tried

    def test_shares_are_whole_units_and_come_together_in_order(
        self, results: list[Results]
    ) -> None:
        assert [found["part"] for found in results] == [(0, 4), (4, 7)]
        for found in results:
            assert found["rows"].flatten().tolist() == list(range(14))
            assert found["pieces"].flatten().tolist() == list(range(14))
            assert found["few"].flatten().tolist() == [0, 1]

    def test_what_the_first_has_all_have(self, results: list[Results]) -> None:
        for found in results:
            assert found["from first"].flatten().tolist() == list(range(14))
            assert found["nothing"]


class TestSingleProcess:
    def test_its_share_is_everything_and_nothing_is_copied(self) -> None:
        rows = np.arange(6.0)
        assert share(6, 4) == slice(0, 6)
        assert put_together(rows, 6) is rows
        assert from_first(rows, (6,)) is rows

    def test_evaluating_together_is_evaluating(self) -> None:
        np.testing.assert_array_equal(evaluate("logistic", together=True), evaluate("logistic"))
        expected = extract_features(encoder(), images(), cache=False)
        found = extract_features(encoder(), images(), cache=False, together=True)
        np.testing.assert_array_equal(found, expected)

    def test_rows_of_a_source_are_a_source(self) -> None:
        whole = images()
        part = Rows(whole, slice(5, 9))
        assert isinstance(part, Source)
        assert len(part) == 4
        assert part.fingerprint != whole.fingerprint
        assert torch.equal(part.images([0, 3]), whole.images([5, 8]))
