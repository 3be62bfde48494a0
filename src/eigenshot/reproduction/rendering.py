"""A filled table for a terminal and for a markdown file."""

from __future__ import annotations

from collections.abc import Sequence

from eigenshot.reporter import count_epochs
from eigenshot.reproduction.comparison import Comparison, Section
from eigenshot.reproduction.document import made_by
from eigenshot.reproduction.picture import Picture
from eigenshot.reproduction.plan import Choices, epochs_asked
from eigenshot.reproduction.table import Table

# Sentences below a title, each for tables that have such a heading.
_LEGEND = (
    (
        "measured",
        "Accuracy in percent. ± is the half-width of the 95 % interval over tasks; of several "
        "seeds, that of their mean on each task. sd is the standard deviation between seeds.",
    ),
    ("labels", "'labels' says whether the training used labels."),
    ("difference", "'difference' is measured less paper."),
    (
        "paired",
        "'paired' is the row less the one it is compared with, after as many epochs, with the same "
        "seeds, on the same tasks.",
    ),
    (
        "time",
        "'time' is the training of one run, which is longer beside other runs on one device.",
    ),
)


def as_text(comparison: Comparison) -> str:
    """Aligned columns, a block a section."""
    blocks = [comparison.table.title, *_remarks(comparison)]
    blocks += [f"{section.title}\n{_aligned(section)}" for section in comparison.sections]
    if comparison.notes:
        blocks.append("\n".join(_numbered(comparison.notes)))
    return "\n\n".join(blocks)


def as_markdown(comparison: Comparison, command: str, pictures: Sequence[Picture] = ()) -> str:
    """The same as a markdown document; ``command`` made it, ``pictures`` lie beside it."""
    blocks = [f"# {comparison.table.title}", *_remarks(comparison), _legend(comparison)]
    for section in comparison.sections:
        blocks += [f"## {section.title}", _piped(section)]
    if comparison.notes:
        blocks.append("\n".join(f"- {text}" for text in _numbered(comparison.notes)))
    blocks += [f"![{picture.words}]({picture.file.name})" for picture in pictures]
    blocks.append(made_by(command))
    return "\n\n".join(blocks) + "\n"


def _legend(comparison: Comparison) -> str:
    headings = " ".join(text for section in comparison.sections for text in section.headings)
    return " ".join(sentence for heading, sentence in _LEGEND if heading in headings)


def _remarks(comparison: Comparison) -> list[str]:
    note, asked = comparison.table.note, _asked(comparison.table, comparison.choices)
    return [text for text in (note, asked) if text]


def _asked(table: Table, choices: Choices) -> str:
    """What makes this another table than that of the recipes."""
    parts = []
    if choices.epochs is not None:
        fewer = _of_fewer_epochs(table, choices)
        exceptions = f", but for {', '.join(fewer)}" if fewer else ""
        epochs = count_epochs(choices.epochs)
        parts.append(f"every run has {epochs} instead of its recipe's{exceptions}")
    if choices.changes:
        shown = ", ".join(f"{key}={value}" for key, value in choices.changes.items())
        parts.append(f"every run has {shown}")
    return f"Not the recipes' setting: {'; '.join(parts)}." if parts else ""


def _of_fewer_epochs(table: Table, choices: Choices) -> list[str]:
    """The rows that name fewer epochs than were asked for, with theirs."""
    asked = [(row.label, epochs_asked(row, choices)) for row in table.rows if row.method]
    return [f"{label} ({epochs})" for label, epochs in asked if epochs != choices.epochs]


def _numbered(notes: Sequence[str]) -> list[str]:
    return [f"[{number}] {text}" for number, text in enumerate(notes, 1)]


def _aligned(section: Section) -> str:
    table = [section.headings, *section.lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def _piped(section: Section) -> str:
    rule = ["---"] * len(section.headings)
    table = [section.headings, rule, *section.lines]
    return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in table)


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")
