"""Pages: links lead somewhere, pictures are what draws them, every room has its page."""

from __future__ import annotations

import re
import runpy

import pytest

import spgnn
from tests.docs.pages import PAGES, ROOT, name_of

LINK = re.compile(r"\]\(([^)\s]+)\)")
# Made when the site is built.
GENERATED = ROOT / "docs" / "examples"


def without_code(text: str) -> str:
    """A page without its code blocks and inline code."""
    return re.sub(
        r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    )


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub and the site name them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_relative_to(ROOT), target
        assert found.exists() or found.is_relative_to(GENERATED), target
        if anchor:
            assert anchor in anchors(found.read_text(encoding="utf-8")), target


def test_pictures_are_what_the_script_draws():
    drawing = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    found = {file.stem: file.read_text(encoding="utf-8") for file in drawing["DIRECTORY"].iterdir()}
    assert found == {name: draw().source() for name, draw in drawing["PICTURES"].items()}


def test_every_room_with_public_names_has_a_page():
    """A door is a package that says what is public; a page may show modules of its room too."""
    pages = (ROOT / "docs" / "api").glob("*.md")
    shown = {
        module
        for page in pages
        for module in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
    }
    folder = ROOT / "spgnn"
    doors = {
        f"spgnn.{file.parent.name}"
        for file in folder.glob("*/__init__.py")
        if "__all__" in file.read_text(encoding="utf-8")
    }
    doors |= {spgnn.__name__, "spgnn.testing"}
    assert doors <= shown
    assert {".".join(module.split(".")[:2]) for module in shown} <= doors


def test_every_page_in_docs_is_in_the_menu():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "\n*\n" in index  # all of docs/*.md, whatever else there is
    for page in (ROOT / "docs" / "guides").glob("*.md"):
        assert f"\nguides/{page.stem}\n" in index, page
    rooms = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "api").glob("*.md"):
        assert page.stem == "index" or f"\n{page.stem}\n" in rooms, page
