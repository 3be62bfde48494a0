"""Columns of pictures and labels, as people call and fill them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eigenshot.errors import UserError
from tests.data.parquet_files import cells, class_label, labels_of, opened, write, write_hub


@pytest.mark.parametrize(
    ("columns", "features", "expected"),
    [
        ({"a": [b"a"], "b": cells([b"b"])}, {"a": {"_type": "Image"}}, b"a"),
        ({"a": [b"a"], "b": cells([b"b"])}, None, b"b"),
        ({"mask": cells([b"m"]), "IMG": cells([b"i"])}, None, b"i"),
        ({"key": ["k"], "__raw": [b"r"], "jpg": [b"j"]}, None, b"j"),
        ({"only": pa.array([b"o"], pa.large_binary())}, None, b"o"),
        ({"image": pa.array([b"d"]).dictionary_encode()}, None, b"d"),
        (
            {"x": cells([b"x"]), "image": cells([b"i"])},
            {"x": {"_type": "Image"}, "image": {"_type": "Image"}},
            b"i",
        ),
    ],
)
def test_the_image_column_is_found(
    tmp_path: Path, columns: dict[str, Any], features: dict[str, Any] | None, expected: bytes
) -> None:
    assert opened(write(tmp_path / "a.parquet", columns, features)).read([0]) == [expected]


def test_the_image_column_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": cells([b"i"]), "thumbnail": [b"t"]})
    assert opened(path, image_column="thumbnail").read([0]) == [b"t"]
    with pytest.raises(UserError, match=r"no column 'thumnail'.*did you mean 'thumbnail'"):
        opened(path, image_column="thumnail")


@pytest.mark.parametrize(
    ("columns", "features", "message"),
    [
        ({"left": [b"l"], "right": [b"r"]}, None, "left, right; call the one that does 'image'"),
        ({"image": [[1, 2]], "n": [1]}, None, r"no column of encoded images, found: image \(list"),
        ({"image": [[1, 2]]}, {"image": {"_type": "Image"}}, "'image' holds list<.*expected enc"),
        ({"image": ["a.png"]}, {"image": {"_type": "Image"}}, "'image' holds string"),
    ],
)
def test_no_image_column_to_be_used(
    tmp_path: Path, columns: dict[str, Any], features: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        opened(write(tmp_path / "a.parquet", columns, features))


FINE, COARSE = class_label(["cat", "dog", "elm"]), class_label(["animal", "plant"])


@pytest.mark.parametrize(
    ("columns", "features", "options", "labels", "names"),
    [
        # The metadata's class labels, by usual name or the only one.
        (
            {"coarse_label": [0, 1], "fine_label": [1, 2]},
            {"coarse_label": COARSE, "fine_label": FINE},
            {},
            [1, 2],
            ("cat", "dog", "elm"),
        ),
        ({"kind": [0, 1]}, {"kind": COARSE}, {}, [0, 1], ("animal", "plant")),
        ({"kind": [0, 1], "label": [5, 6]}, {"kind": COARSE}, {}, [0, 1], ("animal", "plant")),
        # Asked for.
        (
            {"coarse_label": [0, 1], "fine_label": [1, 2]},
            {"coarse_label": COARSE, "fine_label": FINE},
            {"label_columns": ("label", "coarse_label", "fine_label")},
            [0, 1],
            ("animal", "plant"),
        ),
        ({"label": [0, 1]}, {"label": COARSE}, {"label_columns": ()}, None, ()),
        # Without metadata, by name and type.
        ({"id": [7, 8], "target": pa.array([2, 0], pa.uint8())}, None, {}, [2, 0], tuple("012")),
        ({"class": ["pear", "fig"]}, None, {}, [1, 0], ("fig", "pear")),
        ({"y": pa.array(["b", None]).dictionary_encode()}, None, {}, [0, -1], ("b",)),
        ({"id": [7, 8]}, None, {}, None, ()),
        ({"label": [0.5, 1.5]}, None, {}, None, ()),
        # Nested and several labels a picture are no labels.
        ({"label": [[0], [1]]}, {"label": {"feature": COARSE, "_type": "Sequence"}}, {}, None, ()),
        ({"label": [{"a": 0}, {"a": 1}]}, {"label": {"a": COARSE}}, {}, None, ()),
    ],
)
def test_the_label_column_is_found(
    tmp_path: Path,
    columns: dict[str, Any],
    features: dict[str, Any] | None,
    options: dict[str, Any],
    labels: list[int] | None,
    names: tuple[str, ...],
) -> None:
    path = write(tmp_path / "a.parquet", {**columns, "image": cells([b"0", b"1"])}, features)
    table = opened(path, **options)
    assert table.class_names == names
    assert table.labels is None if labels is None else labels_of(table) == labels


def test_metadata_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    for text in (b"{", b"[]", b"\xff", b'{"info": {"features": [1]}}', b'{"info": null}'):
        columns = pa.table({"image": [b"x"], "label": [1]})
        columns = columns.replace_schema_metadata({b"huggingface": text})
        pq.write_table(columns, tmp_path / "a.parquet")
        assert labels_of(opened(tmp_path / "a.parquet")) == [1]


def test_classes_are_united_by_name(tmp_path: Path) -> None:
    train = write_hub(tmp_path / "train.parquet", [b"a", b"b"], [0, 1], ["cat", "dog"])
    test = write_hub(tmp_path / "test.parquet", [b"c", b"d", b"e"], [1, 0, 2], ["elm", "cat", "ox"])
    table = opened(train, test)
    assert table.class_names == ("cat", "dog", "elm", "ox")
    assert labels_of(table) == [0, 1, 0, 2, 3]


def test_strings_are_numbered_in_sorted_order_over_all_shards(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", {"image": [b"1", b"2"], "label": ["pear", "fig"]})
    second = write(tmp_path / "b.parquet", {"image": [b"3", b"4"], "label": ["fig", "apple"]})
    table = opened(first, second)
    assert table.class_names == ("apple", "fig", "pear")
    assert labels_of(table) == [2, 1, 1, 0]


def test_unknown_labels_are_minus_one(tmp_path: Path) -> None:
    train = write_hub(tmp_path / "train.parquet", [b"a", b"b"], [1, None], ["cat", "dog"])
    rest = write(tmp_path / "rest.parquet", {"image": cells([b"c", b"d"]), "label": [-1, -1]})
    nulls = write(tmp_path / "nulls.parquet", {"image": cells([b"e"]), "label": pa.nulls(1)})
    table = opened(train, rest, nulls)
    assert labels_of(table) == [1, -1, -1, -1, -1]
    assert table.class_names == ("cat", "dog")


def test_only_unknown_labels_are_no_labels(tmp_path: Path) -> None:
    table = opened(write_hub(tmp_path / "a.parquet", [b"a", b"b"], [-1, None], ["cat", "dog"]))
    assert (table.labels, table.class_names) == (None, ())


def test_numbers_with_names_and_without_do_not_mix(tmp_path: Path) -> None:
    named = write_hub(tmp_path / "a.parquet", [b"a"], [0], ["cat"])
    bare = write(tmp_path / "b.parquet", {"image": cells([b"b"]), "label": [0]})
    with pytest.raises(UserError, match=r"a\.parquet are numbers with .*b\.parquet are numbers w"):
        opened(named, bare)


@pytest.mark.parametrize(
    ("label", "names", "message"),
    [
        (2, ["cat", "dog"], r"found the label 2 in column 'label', expected 0\.\.1"),
        (-2, ["cat", "dog"], r"found the label -2"),
        (-2, None, r"found the label -2"),
        (10**15, None, r"found the label 10{15} .*expected 0\.\.999999"),
        (2**64 - 1, None, r"found the label 18446744073709551615"),
    ],
)
def test_labels_out_of_range(
    tmp_path: Path, label: int, names: list[str] | None, message: str
) -> None:
    kind = pa.uint64() if label > 2**63 else pa.int64()
    columns = {"image": cells([b"a", b"b"]), "label": pa.array([0, label], kind)}
    features = None if names is None else {"label": class_label(names)}
    path = write(tmp_path / "a.parquet", columns, features)
    with pytest.raises(UserError, match=r"a\.parquet, row 1: " + message):
        opened(path)


def test_a_class_name_twice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.parquet.*found 'cat' more than once"):
        opened(write_hub(tmp_path / "a.parquet", [b"a"], [0], ["cat", "dog", "cat"]))


def test_labels_that_were_asked_for_must_be_there(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": [b"a"], "label": [0], "score": [0.5]})
    with pytest.raises(UserError, match=r"no label column fine or coarse, found: image \(binary\)"):
        opened(path, label_columns=["fine", "coarse"])
    with pytest.raises(UserError, match=r"'score' holds double, expected integers or strings"):
        opened(path, label_columns=["score"])
