"""``eigenshot data``: which benchmarks there are, and whether they are here and in order."""

from __future__ import annotations

from typing import Annotated

import typer

from eigenshot.cli_common import DATA_HELP, reporting, say, telling_of_an_interruption

data_app = typer.Typer(
    help="Benchmarks: which there are, whether they are here and in order.",
    no_args_is_help=True,
)


@data_app.command("list")
def list_command() -> None:
    """List the benchmarks, and where their files are or are looked for."""
    from eigenshot.data.benchmarks.access import BENCHMARKS, data_folder, locate
    from eigenshot.data.cache import cache_folder, mebibytes
    from eigenshot.data.tables.shards import find_shards
    from eigenshot.errors import CannotRead, UserError
    from eigenshot.files import looking_into

    rows = [
        ("glyphs", "embedded", "-", "characters of many fonts, drawn as they are needed, 28x28")
    ]
    for name, benchmark in BENCHMARKS.items():
        folder = data_folder() / benchmark.folder
        try:
            found = locate(benchmark) is not None
            parts = find_shards(folder).values() if found else ()
            with looking_into(folder):
                held = sum(shard.stat().st_size for part in parts for shard in part)
        except CannotRead as error:
            rows.append((name, str(error), "-", benchmark.description))
            continue
        except UserError:  # `data check` says what is wrong
            rows.append((name, f"incomplete in {folder}", "-", benchmark.description))
            continue
        size = f"{held / 2**20:,.0f}" if found else "-"
        place = str(folder) if found else f"not in {folder}"
        rows.append((name, place, size, benchmark.description))
    table = [("name", "where", "MiB", "what"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for name, place, size, description in table:
        say(f"{name:<{widths[0]}}  {place:<{widths[1]}}  {size:>{widths[2]}}  {description}")
    pixels = cache_folder() / "pixels"
    held = sum(file.stat().st_size for file in pixels.glob("*") if file.is_file())
    say(f"\ndecoded images: {mebibytes(held)} in {pixels}, which can be deleted at any time")


@data_app.command("check")
@telling_of_an_interruption()
def check_command(
    data: Annotated[str, typer.Argument(help=DATA_HELP)],
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Decode every image once and report what is wrong; exit code 1 if anything is."""
    from json import dumps

    from eigenshot.data.benchmarks.access import BENCHMARKS
    from eigenshot.data.benchmarks.check import check_benchmark, check_table
    from eigenshot.data.benchmarks.check_input import open_table_for_check
    from eigenshot.errors import UserError

    if data == "glyphs":
        raise UserError("glyphs are drawn as they are needed; there are no files to check")
    with reporting() as reporter:
        progress = reporter.counting(f"checking {data}")
        if data in BENCHMARKS:
            report = check_benchmark(data, progress)
        else:
            table, splits = open_table_for_check(data, reporter)
            report = check_table(table, splits, progress)
    say(dumps(report.to_dict(), indent=2) if json else report.to_text())
    if report.problems:
        raise typer.Exit(1)


@data_app.command("fetch")
@telling_of_an_interruption()
def fetch_command(
    name: Annotated[
        str,
        typer.Argument(help="A benchmark, or a hub repository owner/name or owner/name@config."),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace shards that are there already.")
    ] = False,
) -> None:
    """Bring a data set, or what is missing of it, from the Hugging Face hub."""
    from eigenshot.data.benchmarks.access import find_benchmark
    from eigenshot.data.benchmarks.hub import fetch, fetch_benchmark, hub_folder
    from eigenshot.errors import UserError

    repository = name.removeprefix("hub:")
    if name == "glyphs":
        raise UserError("glyphs are drawn as they are needed; there is nothing to fetch")
    with reporting() as reporter:
        if "/" in repository:
            folder = fetch(repository, hub_folder(repository), reporter=reporter, force=force)
        else:
            folder = fetch_benchmark(find_benchmark(name).name, reporter=reporter, force=force)
    say(f"shards in {folder}")
