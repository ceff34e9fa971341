"""Who may import whom: {rules, heads, tasks} <- engine <- {training, benchmarks} <- {cli, ui}; only ui knows gradio."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "explorer"
BASE = {"errors", "folders", "settings"}
MODELS = {"rules", "heads", "tasks"}
ALLOWED = {
    "errors": set(),
    "folders": set(),
    "settings": {"errors"},
    "rules": set(),
    "heads": {"heads"},
    "tasks": {"tasks"},
    "engine": {"engine", *MODELS},
    "training": {"training", "engine", *MODELS},
    "benchmarks": {"benchmarks", "engine", *MODELS},
    "cli": {"cli", "benchmarks", "training", "engine", *MODELS},
    "__main__": {"cli"},
    "ui": {"ui", "benchmarks", "training", "engine", *MODELS},
    "__init__": set(),
}
SCREEN_ONLY = {"gradio", "pandas", "plotly"}
FILES = sorted(PACKAGE.rglob("*.py"))


def layer_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_modules(path):
    """Absolute dotted names of everything a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; write it out."
            # `from explorer import x` and `from explorer.engine import weights` name modules as well as values.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_layers(path):
    names = (name.split(".") for name in imported_modules(path))
    return {parts[1] for parts in names if parts[0] == "explorer" and len(parts) > 1}


def test_the_package_is_there():
    assert len(FILES) > 10
    assert {"rules", "heads", "engine", "training", "cli", "ui"} <= {layer_of(path) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    layer = layer_of(path)
    own = {"rules"} if layer == "rules" else set()
    assert imported_layers(path) <= BASE | ALLOWED[layer] | own, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_page_imports_what_draws_it(path):
    tops = {name.split(".")[0] for name in imported_modules(path)}
    if layer_of(path) != "ui":
        assert not tops & SCREEN_ONLY, path


def test_app_is_the_only_module_outside_the_package_that_imports_gradio():
    outside = {path.name for path in ROOT.glob("*.py") if "gradio" in path.read_text(encoding="utf-8")}
    assert outside <= {"app.py"}


def test_this_test_sees_an_import_that_points_up(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(
        "def f():\n    from explorer.ui import app\n    import explorer.training.fit\n    import gradio.themes\n"
    )
    assert imported_layers(bad) == {"ui", "training"}
    assert "gradio" in {name.split(".")[0] for name in imported_modules(bad)}
