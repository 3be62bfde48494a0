"""Imports point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import eigenshot

ROOT = Path(str(eigenshot.__file__)).parent
LEAVES = {
    "errors",
    "options",
    "randomness",
    "files",
    "tensorfile",
    "hardware",
    "machine",
    "reporter",
    "collective",
}
CONFIG = {"config", "configcheck", "configfile"}
ALLOWED: dict[str, set[str]] = {
    "spectral": {"errors", "eigensolver"},
    "eigensolver": {"errors"},
    "networks": {"errors", "options", "collective"},
    "methods": {"errors", "options", "collective", "hardware", "networks"},
    "data": LEAVES,
    "config": {"errors", "configcheck"},
    "configcheck": {"errors", "config"},  # that it is given one, no more
    "configfile": {"errors", "options", "files", "config"},
    "encoder": LEAVES | {"networks", "data"},
    "evaluation": LEAVES | {"data", "encoder"},
    "training": LEAVES
    | CONFIG
    | {"data", "networks", "methods", "encoder", "evaluation", "spectral"},
    "reports": LEAVES | {"data", "encoder", "evaluation"},
    "reproduction": LEAVES | CONFIG | {"data", "methods", "evaluation", "training", "reports"},
}


def parts_imported(file: Path) -> set[str]:
    """The parts of the package that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        if isinstance(node, ast.ImportFrom) and node.module == "eigenshot":
            names = [f"eigenshot.{alias.name}" for alias in node.names]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("eigenshot.")}
    return found


def test_every_part_imports_only_what_stands_below_it() -> None:
    checked = 0
    for file in sorted(ROOT.rglob("*.py")):
        part = file.relative_to(ROOT).parts[0].removesuffix(".py")
        allowed = ALLOWED.get(part, LEAVES if part in LEAVES else None)
        if allowed is not None:
            wrong = parts_imported(file) - allowed - {part}
            assert not wrong, f"{file.relative_to(ROOT)} imports {sorted(wrong)}"
            checked += 1
    assert checked > 30


def test_nothing_imports_torchvision() -> None:
    for file in ROOT.rglob("*.py"):
        assert "import torchvision" not in file.read_text(), file
