"""The site: `make docs`. Its source is the whole repository, so links are the same as on GitHub."""

import inspect
import re
from functools import cached_property
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def _version() -> str:
    text = (REPOSITORY / "spgnn/__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert match is not None
    return match[1]


project = "spgnn"
author = "the spgnn developers"
project_copyright = author
version = release = _version()

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]

# Pages are named here, for the repository holds much that is none.
root_doc = "docs/index"
include_patterns = [
    "docs/**", "benchmarks/results/*.md",
    "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md",
]  # fmt: skip
exclude_patterns = [
    ".*", "build", "dist", "data", "spgnn", "tests", "experiments", "docs/_*", "docs/gallery",
]  # fmt: skip
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Code blocks without a language are commands, configuration, or pictures made of letters.
highlight_language = "none"

smartquotes = False  # -- is the beginning of a flag
default_role = "literal"  # docstrings say `name`, as Markdown does
# Signatures hold types; the sections of a docstring hold shapes, which are words and no references.
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: name.removeprefix("npt.")
    for name in ("npt.ArrayLike", "Int32Array", "Int64Array", "Float64Array", "Progress")
}
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]

sphinx_gallery_conf = {
    "examples_dirs": ["docs/gallery"],
    "gallery_dirs": ["docs/examples"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
}

html_theme = "furo"
html_title = f"spgnn {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_sphinx = False
html_sidebars = {
    "**": [
        "sidebar/brand.html", "versions.html", "sidebar/search.html", "sidebar/scroll-start.html",
        "sidebar/navigation.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", _skipped)
    app.connect("source-read", _list_options)


def _list_options(app: Any, page: str, source: list[str]) -> None:
    """Print all options of training where its page says so."""
    if page != "docs/training":
        return
    from spgnn.config import TrainConfig
    from spgnn.options import options_of

    lines = list[str]()
    for record in TrainConfig.sections().values():
        options = options_of(record)
        lines += ["", f"**{options[0].section}**: {record.__doc__}", ""]
        lines += ["| option | |", "|---|---|"]
        for option in options:
            text = ": ".join(filter(None, [option.mark.help, ", ".join(option.choices)]))
            text += f" ({option.mark.metavar})" if option.mark.metavar else ""
            text += "" if option.default is None else f". Default `{option.default}`"
            text = text.replace("|", r"\|")
            lines.append(f"| `{option.written}` | {text} |")
    marker = "<!-- every option -->"
    assert marker in source[0]
    source[0] = source[0].replace(marker, "\n".join(lines))


def _skipped(*event: Any) -> bool | None:
    """Leave out fields, which the docstring of their class lists, and what has no docstring."""
    _, what, _, member, skip, _ = event
    if what != "class" or skip:
        return None
    shown = inspect.isroutine(member) or isinstance(member, property | cached_property)
    return not (shown and inspect.getdoc(member)) or None
