"""What is wrong with a data set: counted, measured and compared with what was published."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import cast

import numpy as np

from eigenshot.data.benchmarks.access import (
    Benchmark,
    find_benchmark,
    open_benchmark,
    plain_name,
    read_class_list,
    shards_of_benchmark,
)
from eigenshot.data.benchmarks.examine import Facts, examine
from eigenshot.data.benchmarks.findings import (
    CheckReport,
    SplitSummary,
    count_images,
    count_pictures,
    some,
)
from eigenshot.data.reading.workers import Progress
from eigenshot.data.tables.encoded import Encoded, Selection
from eigenshot.data.tables.shards import ShardTable, broken_shards, open_shards
from eigenshot.errors import UserError

__all__ = ["CheckReport", "check_benchmark", "check_table"]


def check_benchmark(benchmark: str | Benchmark, progress: Progress | None = None) -> CheckReport:
    """Compare a benchmark's files with what was published."""
    known = find_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    files = shards_of_benchmark(known)
    broken = broken_shards(files, known.label_columns)
    if len(broken) == len(files):
        raise UserError(broken[files[0]])
    sound = [file for file in files if file not in broken]
    table = open_shards(sound, name=known.name, label_columns=())
    selections: dict[str, Selection] = {}
    failures = []
    for split in known.splits:
        try:
            selections[split] = _within(table, open_benchmark(known, split, broken))
        except UserError as error:
            failures.append(error)
    if not selections:
        raise failures[0]
    facts = examine(table, progress)
    report = _report(known.name, table, selections, facts)
    report.problems.extend([*broken.values(), *map(str, failures)])
    for split, selection in selections.items():
        _compare_counts(report, known, split, selection)
        _compare_sizes(report, known, split, facts.extents[facts.readable(selection.rows)])
    if known.class_list is not None:
        _compare_classes(report, selections)
    if known.superclass_column is not None:
        _compare_superclasses(report, known, table, selections)
    _compare_shared(report, known)
    return report


def check_table(
    table: Encoded,
    splits: Mapping[str, Selection] | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Look for faults in one's own table; ``splits`` are selections of its rows."""
    if not splits:
        rows = np.arange(len(table))
        splits = {"all": Selection(table, rows, table.labels, table.class_names, table.name)}
    facts = examine(table, progress)
    report = _report(table.name, table, splits, facts)
    if table.note and table.note not in table.faults:
        report.notes.append(table.note)
    report.problems.extend(table.faults)
    for split, selection in splits.items():
        readable = facts.is_readable(selection.rows)
        unknown = 0 if selection.labels is None else int((selection.labels[readable] < 0).sum())
        if unknown:
            report.notes.append(f"{split} has {count_images(unknown)} without a known label")
    counts = _images_a_class(table, facts.is_readable(np.arange(len(table))))
    without = np.flatnonzero(counts == 0)
    if len(without):
        shown = some([f"'{table.class_names[label]}'" for label in without])
        report.problems.append(
            f"class {shown} has no readable images"
            if len(without) == 1
            else f"{len(without)} classes have no readable images: {shown}"
        )
    report.problems.extend(
        f"{_pair(pair)} share {count_pictures(count)}"
        for pair, count in report.shared.items()
        if count
    )
    return report


def _within(table: ShardTable, selection: Selection) -> Selection:
    """The same pictures as rows of ``table``, which has all shards of the selection's own."""
    own = cast(ShardTable, selection.table)
    start = dict(zip(table.shards, table.shard_starts[:-1].tolist(), strict=True))
    shift = np.array([start[shard] for shard in own.shards]) - own.shard_starts[:-1]
    shard = np.searchsorted(own.shard_starts, selection.rows, side="right") - 1
    rows = selection.rows + shift[shard]
    return Selection(table, rows, selection.labels, selection.class_names, selection.name)


def _report(
    name: str, table: Encoded, splits: Mapping[str, Selection], facts: Facts
) -> CheckReport:
    """What can be said of any data: the summaries, the unreadable, the repeated, the shared."""
    summaries = [_summarise(split, selection, facts) for split, selection in splits.items()]
    unreadable = [(table.describe(row), facts.failures[row]) for row in sorted(facts.failures)]
    pictures = {split: facts.digests[facts.readable(splits[split].rows)] for split in splits}
    shared = {
        f"{first}/{second}": len(np.intersect1d(pictures[first], pictures[second]))
        for first, second in itertools.combinations(_outermost(splits), 2)
    }
    report = CheckReport(name, tuple(summaries), shared, tuple(unreadable))
    if unreadable:
        shown = some([f"{where}: {reason}" for where, reason in unreadable], "; ")
        report.problems.append(f"{count_images(len(unreadable))} cannot be read: {shown}")
    for summary in summaries:
        if summary.repeated:
            report.notes.append(
                f"{summary.name} repeats {count_pictures(summary.repeated)} of its own"
            )
    used = np.unique(np.concatenate([selection.rows for selection in splits.values()]))
    if len(used) < len(table):
        report.notes.append(f"{count_images(len(table) - len(used))} in no split")
    return report


def _outermost(splits: Mapping[str, Selection]) -> list[str]:
    """The splits that are not a part of another."""
    return [
        split
        for split, selection in splits.items()
        if not any(
            len(other) > len(selection) and np.isin(selection.rows, other.rows).all()
            for other in splits.values()
        )
    ]


def _summarise(split: str, selection: Selection, facts: Facts) -> SplitSummary:
    readable = facts.is_readable(selection.rows)
    rows = selection.rows[readable]
    counts = _images_a_class(selection, readable)
    counts = counts[counts > 0]
    pixels = max(int(facts.pixels[rows].sum()), 1)
    mean = facts.sums[rows].sum(axis=0) / pixels / 255
    square = facts.squares[rows].sum(axis=0) / pixels / 255**2
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    return SplitSummary(
        name=split,
        images=len(rows),
        classes=len(counts),
        images_a_class=(int(counts.min()), int(counts.max())) if len(counts) else None,
        sizes=_sizes(facts.extents[rows]),
        mean=tuple(round(value, 6) for value in mean.tolist()),
        deviation=tuple(round(value, 6) for value in deviation.tolist()),
        unreadable=len(selection) - len(rows),
        repeated=len(rows) - len(np.unique(facts.digests[rows])),
    )


def _sizes(extents: np.ndarray) -> dict[str, int]:
    """How often each size occurs among (n, 2), the most frequent first."""
    found, counts = np.unique(extents, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {f"{found[at, 0]}x{found[at, 1]}": int(counts[at]) for at in order}


def _images_a_class(table: Encoded, among: np.ndarray | None = None) -> np.ndarray:
    """Of all rows or those marked ``among`` (N,) them; int64 (classes,), empty without labels."""
    if table.labels is None:
        return np.zeros(0, np.int64)
    labels = table.labels if among is None else table.labels[among]
    return np.bincount(labels[labels >= 0], minlength=len(table.class_names))


def _compare_counts(
    report: CheckReport, known: Benchmark, split: str, selection: Selection
) -> None:
    # What was published is counted by rows; which of them are broken is a problem of its own.
    expected, counts = known.expected[split], _images_a_class(selection)
    if len(selection) != expected.images:
        found = f"{count_images(len(selection))}, expected {expected.images:,}"
        report.problems.append(f"{split} has {found}")
    if len(counts) != expected.classes:
        report.problems.append(f"{split} has {len(counts)} classes, expected {expected.classes}")
    off = np.flatnonzero((counts < expected.fewest) | (counts > expected.most))
    if len(off):
        shown = some([f"{selection.class_names[label]} ({counts[label]:,})" for label in off])
        span = f"{expected.fewest:,}" + (
            f" to {expected.most:,}" if expected.most > expected.fewest else ""
        )
        report.problems.append(
            f"{split} has {len(off)} classes without the expected {span} images: {shown}"
        )


def _compare_sizes(report: CheckReport, known: Benchmark, split: str, extents: np.ndarray) -> None:
    side = known.image_size
    other = int((extents != side).any(axis=1).sum())
    if other and known.exact_size:
        report.problems.append(
            f"{split} has {count_images(other)} of another size than {side}x{side}"
        )
    elif other:
        small = int((extents.min(axis=1) < side).sum())
        enlarged = f", {small:,} of them enlarged" if small else ""
        report.notes.append(
            f"{split} has {count_images(other)} to be resized to {side}x{side}{enlarged}"
        )


def _compare_classes(report: CheckReport, selections: Mapping[str, Selection]) -> None:
    """No class may be in two class splits."""
    names = {
        split: set(map(plain_name, chosen.class_names)) for split, chosen in selections.items()
    }
    for first, second in itertools.combinations(names, 2):
        both = sorted(names[first] & names[second])
        if both:
            report.problems.append(
                f"{first} and {second} share {len(both)} class{'es' if len(both) > 1 else ''}: "
                f"{some(both)}"
            )


def _compare_superclasses(
    report: CheckReport, known: Benchmark, table: ShardTable, selections: Mapping[str, Selection]
) -> None:
    """Each row's superclass must be the known one of its class, and may have to stay apart."""
    superclass = {
        plain_name(name): plain_name(group)
        for group, names in read_class_list("cifar100-superclasses").items()
        for name in names
    }
    column = str(known.superclass_column)
    try:
        coarse = open_shards(table.shards, name=known.name, label_columns=(column,))
    except UserError:
        coarse = None
    if coarse is None or coarse.labels is None:
        report.notes.append(f"no column '{column}' to compare the classes with")
    else:
        found = np.array([*map(plain_name, coarse.class_names), ""])
        for split, selection in selections.items():
            labels = np.asarray(selection.labels)
            own = np.array([superclass.get(plain_name(name)) for name in selection.class_names])
            wrong = int((found[coarse.labels[selection.rows]] != own[labels]).sum())
            if wrong:
                found_wrong = f"{count_images(wrong)} with another '{column}' than their class has"
                report.problems.append(f"{split} has {found_wrong}")
    if known.separate_superclasses:
        groups = {
            split: {superclass.get(plain_name(name)) for name in selection.class_names}
            for split, selection in selections.items()
        }
        for first, second in itertools.combinations(groups, 2):
            both = groups[first] & groups[second]
            if both:
                report.problems.append(f"{first} and {second} share {len(both)} superclasses")


def _compare_shared(report: CheckReport, known: Benchmark) -> None:
    """Duplicates that are in the published data are named; others are a fault of this copy."""
    for pair, count in report.shared.items():
        said = f"{_pair(pair)} share {count_pictures(count)}"
        if known.known_duplicates is None:
            if count:
                report.notes.append(f"{said}; how many the published data share is not known")
            continue
        first, second = pair.split("/")
        expected = known.known_duplicates.get((first, second), 0)
        if count > expected:
            report.problems.append(f"{said}, expected {expected:,}")
        elif count < expected:
            report.notes.append(f"{said}, the published data share {expected:,}")
        elif count:
            report.notes.append(f"{said}, as in the published data")


def _pair(pair: str) -> str:
    return pair.replace("/", " and ")
