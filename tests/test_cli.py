"""The command line as a stranger uses it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eigenshot import load_encoder
from eigenshot.cli import main
from tests.test_encoder import small_encoder

SMALL = ["data.per_class=1", "backbone.options.widths=[4,4,4,8]", "projector.width=16"]
TINY = ["--epochs", "1", "--device", "cpu", *(p for s in SMALL for p in ("--set", s))]


class Shell:
    """Runs the program in this process and keeps what it said."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.patch = patch
        self.capture = capture

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.patch.setattr(sys, "argv", ["eigenshot", *map(str, arguments)])
        self.patch.setattr(sys, "path", list(sys.path))
        self.patch.setenv("COLUMNS", "500")  # long sentences stay on one line
        with pytest.raises(SystemExit) as stopped:
            main()
        output = self.capture.readouterr()
        code = stopped.value.code
        assert isinstance(code, int | None)
        return code or 0, output.out, output.err

    def refused(self, *arguments: object) -> str:
        """The sentence of a refusal: exit code 2, nothing on stdout, no traceback."""
        code, out, err = self(*arguments)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        return err


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of twelve small pictures."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for number in range(12):
            pixels = generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_version_and_help(shell: Shell) -> None:
    code, out, _ = shell("--version")
    assert code == 0
    assert out.startswith("eigenshot 0.")
    code, out, _ = shell("--help")
    assert code == 0
    assert all(command in out for command in ("demo", "pretrain", "evaluate"))
    code, out, _ = shell("pretrain", "--help")
    for option in ("--out", "--recipe", "--backbone", "--epochs", "--resume", "--init", "--set"):
        assert option in out


@pytest.mark.parametrize("command", ["demo", "classify"])
def test_what_one_process_does_is_refused_to_several(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert f"'{command}' is the work of one process, but 2 were" in shell.refused(command)


def test_help_does_not_wait_for_torch() -> None:
    program = "import sys; sys.argv = ['eigenshot', '--help']\nfrom eigenshot.cli import main\n"
    program += "try: main()\nexcept SystemExit: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_pretrain_and_evaluate_glyphs(shell: Shell, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, out, err = shell("pretrain", "glyphs", "--out", run, *TINY)
    assert code == 0, err
    assert "encoder in" in out
    assert "about" in err, "an estimate of the time comes first"
    code, out, err = shell(
        "evaluate", "fewshot", run, "--data", "glyphs", "--episodes", 20, "--json"
    )
    assert code == 0, err
    result = json.loads(out)
    assert {"1", "5", "classifier", "transductive"} <= set(result)
    assert result["1"]["episodes"] == 20
    assert 20 < result["1"]["accuracy"] < result["5"]["accuracy"] < 100
    code, out, err = shell(
        "evaluate", "fewshot", run, "--data", "glyphs", "--episodes", 20, "--against", run
    )
    assert code == 0, err
    assert out.count("+0.00 ± 0.00 against") == 2
    assert "taken from the cache" in err, "features are computed once"
    cropped = load_encoder(run).with_crops("five").save(run.parent / "five.safetensors")
    measured = ("evaluate", "fewshot", cropped, "--data", "glyphs", "--episodes", 20)
    code, out, _ = shell(*measured, "--against", run)
    assert code == 0
    assert out.count("logistic, five crops") == 2, "those of what is measured, not of its rival"


def test_pretrain_and_evaluate_a_folder(shell: Shell, photos: Path, tmp_path: Path) -> None:
    """The recipe settles sizes, network and batch by itself."""
    run = tmp_path / "run"
    command = ("pretrain", photos, "--out", run, "--epochs", 1, "--device", "cpu")
    code, _, err = shell(*command)
    assert code == 0, err
    assert "kept at 128×128×3, in views of 64×64, with an encoder that looks at 90×90" in err
    assert load_encoder(run).preprocessing.image_size == 90
    code, _, err = shell(*command, "--resume")
    assert code == 0, err
    assert "is finished already" in err
    settings = (run / "config.toml").read_text()
    undecided = [line for line in settings.splitlines() if "auto" in line]
    assert undecided == ['compile = "auto"', 'capture = "auto"'], "these are settled anew each time"
    assert "batch_size = 16" in settings, "the largest power of two that 24 images fill"
    arguments = ("evaluate", "fewshot", run, "--data", photos, "--ways", 2, "--episodes", 5)
    code, out, err = shell(*arguments, "--queries", 6)
    assert code == 0, err
    assert "2-way 1-shot" in out
    assert "class 'cat' has 12 images, but 5 shots + 15 queries need 20" in shell.refused(
        *arguments
    )


@pytest.mark.parametrize("preparation", ["load_source", "build"])
def test_ctrl_c_before_the_first_step_says_how_to_go_on(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preparation: str
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    command = ("pretrain", "glyphs", "--out", tmp_path / "run", *TINY)
    with monkeypatch.context() as patch:
        patch.setattr(f"eigenshot.training.pretrain.{preparation}", interrupted)
        code, out, err = shell(*command)
    assert (code, out) == (130, "")
    assert err.startswith("interrupted, and nothing that was saved is lost; ")
    assert "the same command with --resume" in err
    assert len(err.splitlines()) == 1
    code, out, err = shell(*command, "--resume")
    assert code == 0, err
    assert "encoder in" in out


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="where nothing can be written to")
def test_a_place_that_cannot_be_written_to_is_told_before_the_work(
    shell: Shell, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, place = tmp_path / "run", Path("/proc/self")
    assert shell("pretrain", photos, "--out", run, *TINY)[0] == 0
    for work in (
        "eigenshot.training.pretrain.load_source",
        "eigenshot.evaluation.embed.extract_features",
        "eigenshot.evaluation.classify.classify",
        "eigenshot.reproduction.session.run_all",
    ):
        monkeypatch.delattr(work)
    again = shell.refused("pretrain", photos, "--out", place / "run", *TINY)
    assert "'/proc/self' cannot be written to: " in again
    features = shell.refused("embed", run, photos, "--out", place / "f.npz", "--device", "cpu")
    assert "cannot write features to '/proc/self/f.npz': " in features
    classified = ("classify", run, "--support", photos, "--query", photos)
    for option in ("--out", "--save"):
        sentence = shell.refused(*classified, option, place / "file")
        assert "cannot write to '/proc/self/file': " in sentence
    table = shell.refused("reproduce", "ablation", "--results", place)
    assert "--results: '/proc/self' cannot be written to: " in table


@pytest.mark.parametrize(
    ("work", "command"),
    [
        ("evaluation.protocol.fewshot_of_run", "evaluate fewshot RUN --data x"),
        ("evaluation.protocol.knn_of_run", "evaluate knn RUN --train x --test y"),
        ("evaluation.protocol.linear_of_run", "evaluate linear RUN --train x --test y"),
        ("evaluation.embed.embed", "embed RUN x --out f.npz"),
        ("evaluation.classify.classify", "classify RUN --support x --query y"),
        ("data.benchmarks.check.check_benchmark", "data check fc100"),
    ],
)
def test_an_interruption_is_told_in_a_line(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, command: str
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(f"eigenshot.{work}", interrupted)
    run = small_encoder().save(tmp_path / "encoder.safetensors")
    code, out, err = shell(*command.replace("RUN", str(run)).split())
    assert (code, out) == (130, "")
    assert err == "interrupted before the end; no file is left half-written\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_an_output_that_cannot_be_written_is_a_sentence() -> None:
    command = [sys.executable, "-m", "eigenshot", "data", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: no space left on device\n"


def test_what_may_not_be_read_is_a_sentence(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deny: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    (data / "cifar100").mkdir(parents=True)
    monkeypatch.setenv("EIGENSHOT_DATA", str(data))
    run = small_encoder().save(tmp_path / "encoder.safetensors")
    deny(data)
    sentence = f"error: cannot read '{data / 'cifar100'}': permission denied\n"
    assert shell.refused("pretrain", "fc100", "--out", tmp_path / "run") == sentence
    assert shell.refused("evaluate", "fewshot", run, "--data", "fc100") == sentence
    own = ("embed", run, data / "photos", "--out", tmp_path / "f.npz")
    assert shell.refused(*own) == f"error: cannot read '{data / 'photos'}': permission denied\n"
    deny(run)
    sentence = f"error: cannot read '{run}': permission denied\n"
    assert shell.refused("evaluate", "fewshot", run, "--data", "glyphs") == sentence


class TestBadInput:
    """Each is a sentence a person can act on and exit code 2."""

    def test_no_such_folder(self, shell: Shell, tmp_path: Path) -> None:
        missing = tmp_path / "none"
        assert "none" in shell.refused("pretrain", missing, "--out", tmp_path / "run")

    def test_a_name_that_is_almost_a_benchmark(self, shell: Shell, tmp_path: Path) -> None:
        message = shell.refused("pretrain", "glyph", "--out", tmp_path / "run")
        assert "neither a folder nor a benchmark; did you mean 'glyphs'?" in message

    def test_an_empty_folder(self, shell: Shell, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        message = shell.refused("pretrain", tmp_path / "empty", "--out", tmp_path / "run")
        assert "empty" in message

    def test_a_folder_with_only_text(self, shell: Shell, tmp_path: Path) -> None:
        (tmp_path / "texts").mkdir()
        (tmp_path / "texts" / "a.txt").write_text("hello")
        message = shell.refused("pretrain", tmp_path / "texts", "--out", tmp_path / "run")
        assert "no image" in message
        assert ".jpg" in message

    def test_fewer_images_than_a_batch(self, shell: Shell, photos: Path, tmp_path: Path) -> None:
        message = shell.refused("pretrain", photos, "--out", tmp_path / "run", "--batch-size", 32)
        assert "24 images, fewer than one batch of 32; use --batch-size 24 or less" in message

    def test_images_smaller_than_the_network_needs(
        self, shell: Shell, photos: Path, tmp_path: Path
    ) -> None:
        message = shell.refused(
            "pretrain", photos, "--out", tmp_path / "run", "--set", "data.image_size=8"
        )
        assert "8×8 are smaller than conv4 needs (16×16)" in message

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--backbone", "resnt12"], "unknown backbone 'resnt12'; did you mean 'resnet12'?"),
            (["--recipe", "glyfs"], "unknown recipe 'glyfs'; did you mean 'glyphs'?"),
            (["--method", "dl"], "unknown method 'dl'; did you mean 'dle'?"),
            (["--method", "no.such:Thing"], "cannot import 'no.such'"),
            (["--set", "optimizer.lrate=1"], "'optimizer.lrate'; did you mean 'optimizer.lr'?"),
            (["--set", "training.epochs=many"], "expected a whole number, found 'many'"),
            (["--set", "augment.options.rotate=3"], "did you mean 'rotation'?"),
            (["--set", "method.options.alpha=-1"], "alpha must be positive, found -1.0"),
            (["--set", "backbone.options.width=3"], "did you mean 'widths'?"),
            (["--epochs", "0"], "training.epochs must be at least 1, found 0"),
            (["--init", "nowhere.pt"], "no such run or encoder file: 'nowhere.pt'"),
            (["--device", "gpu"], "unknown device 'gpu'; known: auto, cpu, cuda"),
        ],
    )
    def test_unknown_names(
        self, shell: Shell, tmp_path: Path, arguments: list[str], sentence: str
    ) -> None:
        run = tmp_path / "run"
        small = ["--set", "data.per_class=1"]
        assert sentence in shell.refused("pretrain", "glyphs", "--out", run, *small, *arguments)
        assert not run.exists()

    def test_resume_with_other_settings_and_a_taken_folder(
        self, shell: Shell, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        assert shell("pretrain", "glyphs", "--out", run, *TINY)[0] == 0
        content = (run / "encoder.safetensors").read_bytes()
        taken = shell.refused("pretrain", "glyphs", "--out", run, *TINY)
        assert "already holds a finished run; choose another --out" in taken
        changed = shell.refused(
            "pretrain", "glyphs", "--out", run, *TINY, "--resume", "--set", "optimizer.lr=0.3"
        )
        assert "optimizer.lr: 0.15 in the run, 0.3 asked" in changed
        assert (run / "encoder.safetensors").read_bytes() == content

    def test_evaluating_what_is_no_run(self, shell: Shell, tmp_path: Path) -> None:
        (tmp_path / "junk.safetensors").write_bytes(b"junk")
        data = ["--data", "glyphs"]
        for run, sentence in (
            (tmp_path / "none", "no such run or encoder file"),
            (tmp_path, "is no run: it holds no encoder.safetensors"),
            (tmp_path / "junk.safetensors", "is no safetensors file, or a damaged one"),
        ):
            assert sentence in shell.refused("evaluate", "fewshot", run, *data)

    def test_unlabelled_evaluation_and_a_split_that_is_none(
        self, shell: Shell, photos: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        assert shell("pretrain", "glyphs", "--out", run, *TINY)[0] == 0
        flat = photos / "cat"
        assert "has no labels" in shell.refused("evaluate", "fewshot", run, "--data", flat)
        arguments = ("evaluate", "fewshot", run, "--data", "glyphs", "--split", "tset")
        assert "unknown split 'tset'; did you mean 'test'?" in shell.refused(*arguments)
        arguments = ("evaluate", "fewshot", run, "--data", photos, "--split", "test")
        assert "leave --split out" in shell.refused(*arguments)


def test_a_bug_of_ours_is_exit_1_and_debug_shows_where(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("eigenshot.training.pretrain.pretrain", broken)
    code, _, err = shell("pretrain", "glyphs", "--out", tmp_path / "run")
    assert code == 1
    assert "RuntimeError: boom (--debug shows where)" in err
    monkeypatch.setattr(sys, "argv", ["eigenshot", "--debug", "pretrain", "glyphs", "--out", "x"])
    with pytest.raises(RuntimeError, match="boom"):
        main()


def test_too_little_memory_anywhere_is_a_sentence(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def greedy(*arguments: object, **options: object) -> None:
        torch.empty(2**50)

    monkeypatch.setattr("eigenshot.training.pretrain.pretrain", greedy)
    said = shell.refused("pretrain", "glyphs", "--out", tmp_path / "run")
    assert said.startswith("error: there is not enough memory for this; smaller images")


def test_a_method_beside_the_user_is_found(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_method.py").write_text(
        "from eigenshot import Method\n"
        "class Pull(Method):\n"
        "    def forward(self, a, b):\n"
        "        return {'loss': (self.embed(a) - self.embed(b)).square().mean()}\n"
    )
    monkeypatch.chdir(tmp_path)
    code, _, err = shell(
        "pretrain", "glyphs", "--out", "run", *TINY, "--method", "their_method:Pull"
    )
    assert code == 0, err


def test_help_names_what_there_is(shell: Shell) -> None:
    from eigenshot.configfile import list_recipes
    from eigenshot.methods import list_methods
    from eigenshot.networks import list_backbones

    _, out, _ = shell("pretrain", "--help")
    words = set(re.findall(r"[\w+-]+", out))
    assert {*list_recipes(), *list_methods(), *list_backbones()} <= words


def test_classify_own_images(shell: Shell, photos: Path, tmp_path: Path) -> None:
    """From a run to predictions, and again from the kept classifier."""
    run = tmp_path / "run"
    assert shell("pretrain", photos, "--out", run, "--epochs", 1, "--device", "cpu")[0] == 0
    table, kept = tmp_path / "predictions.csv", tmp_path / "kept.safetensors"
    arguments = ("--query", photos / "cat", "--out", table)
    code, _, err = shell("classify", run, "--support", photos, *arguments, "--save", kept)
    assert code == 0, err
    first = table.read_text()
    assert first.splitlines()[0].count(",") >= 3, "file, class, and a probability for each class"
    assert len(first.splitlines()) == 13
    assert shell("classify", "--classifier", kept, *arguments)[0] == 0
    assert table.read_text() == first
    assert "--support" in shell.refused("classify", run, "--query", photos / "cat")
    common = ("classify", run, "--support", photos, "--query", photos)
    assert "name the same file" in shell.refused(*common, "--out", kept, "--save", kept)
    assert "found a folder" in shell.refused(*common, "--out", tmp_path)
    assert kept.read_bytes(), "nothing was lost"


def test_embed_and_the_other_protocols(shell: Shell, photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert shell("pretrain", photos, "--out", run, "--epochs", 1, "--device", "cpu")[0] == 0
    code, _, err = shell("embed", run, photos, "--out", tmp_path / "features.npz")
    assert code == 0, err
    with np.load(tmp_path / "features.npz") as stored:
        assert stored["features"].shape == (24, 256)
    some = tmp_path / "some"
    for number in range(6):
        for name in ("cat", "dog"):
            (some / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(photos / name / f"{number}.png", some / name)
    both = ("--train", photos, "--test", some)
    code, out, err = shell("evaluate", "knn", run, *both, "--neighbours", 1, "--json")
    assert code == 0, err
    assert json.loads(out)["accuracy"] == 100.0, "every image is its own nearest neighbour"
    assert json.loads(out)["copies"] == 12
    assert "12 of the 12 test images have the very features of a training image" in err
    code, out, err = shell("evaluate", "knn", run, *both, "--json")
    assert "24 of the 24 training images vote" in err
    assert (code, json.loads(out)["neighbours"]) == (0, 24), "not the 200 that were asked for"
    assert shell("evaluate", "knn", run, *both)[1].startswith("24 nearest neighbours  ")
    single = shell("evaluate", "knn", run, *both, "--neighbours", 1)[1]
    assert single == "1 nearest neighbour  100.00 %\n"
    same = ("--train", photos, "--test", photos)
    assert "--train and --test are the same images" in shell.refused("evaluate", "knn", run, *same)
    code, out, _ = shell("evaluate", "linear", run, *both, "--exact", "--json")
    assert (code, json.loads(out)["protocol"]) == (0, "exact")
    code, out, _ = shell("evaluate", "linear", run, *both, "--epochs", 1)
    assert "(sgd)" in out
    few = ("evaluate", "fewshot", run, "--data", photos, "--ways", 2, "--queries", 5)
    assert "same images" in shell.refused(*few, "--select-on", photos)
    assert "needs --base" in shell.refused(*few, "--transform", "centre")
    assert "did you mean 'ridge'" in shell.refused(*few, "--classifier", "rige")
    assert "use --ways 2 or fewer" in shell.refused(*few[:-4], "--ways", 7)


def test_mistakes_with_methods_are_sentences(shell: Shell, tmp_path: Path, photos: Path) -> None:
    def refused(*arguments: object) -> str:
        return shell.refused("pretrain", "glyphs", "--out", tmp_path / "run", *TINY, *arguments)

    assert "did you mean 'simclr'?" in refused("--method", "SimCLR")
    both = refused("--method", "simclr", "--set", "method.name=byol")
    assert "method.name is asked to be both 'simclr' and 'byol'; leave one of them out" in both
    assert "as a class of methods is" in refused("--method", "os:getcwd")
    assert "has no option 'gamma'" in refused("--method", "byol", "--set", "method.options.gamma=1")
    wrong = refused("--set", "training.resolution=20")
    assert "expected a list of values [a number, a whole number], found 20" in wrong
    assert "every side in training.resolution is to be at least 16" in refused(
        "--set", "training.resolution=[[0,2]]"
    )
    assert not (tmp_path / "run").exists()
    loose = tmp_path / "loose"
    loose.mkdir()
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        shutil.copy(file, loose / f"{number}.png")
    unlabelled = shell.refused("pretrain", loose, "--out", tmp_path / "run", "--method", "baseline")
    assert "learns from labels, and 'folder loose' does not have one for every image" in unlabelled


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("fewshot --data x --select-on y -C 7", "--C would do nothing here: --select-on chooses"),
        ("fewshot --data x --select-on y --transform l2", "--transform would do nothing here"),
        ("fewshot --data x --classifier cosine -C 1", "--C would do nothing here: 'cosine' has"),
        ("fewshot --data x --classifier logistc -C 1", "did you mean 'logistic'"),
        ("fewshot --data x --base y", "--base would do nothing here: it is for --transform centre"),
        ("linear --train x --test y -C 4", "--C would do nothing here: it is of --exact"),
        ("linear --train x --test y --exact --lr 3", "--lr would do nothing here: it is of the"),
        ("linear --train x --test y --exact --seed 1", "--seed would do nothing here"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    shell: Shell, tmp_path: Path, command: str, message: str
) -> None:
    kind, *options = command.split()
    assert message in shell.refused("evaluate", kind, tmp_path, *options)
