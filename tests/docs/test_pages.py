"""Pages: links lead somewhere, pictures are what draws them, every room has its page."""

from __future__ import annotations

import ast
import re
import runpy
from xml.etree import ElementTree

import pytest

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
    for source in found.values():
        ElementTree.fromstring(source)


def doors() -> dict[str, list[str]]:
    """Packages that say what is public, and their names."""
    found = {}
    for file in [ROOT / "spgnn" / "__init__.py", *(ROOT / "spgnn").glob("*/__init__.py")]:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                room = file.parent.relative_to(ROOT).parts
                found[".".join(room)] = sorted(ast.literal_eval(node.value))
    return found


def test_every_room_with_public_names_has_a_page():
    """A door is a package that says what is public; a page may show modules of its room too."""
    pages = (ROOT / "docs" / "api").glob("*.md")
    shown = {
        module
        for page in pages
        for module in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
    }
    expected = {*doors(), "spgnn.testing"}
    assert expected <= shown
    assert {".".join(module.split(".")[:2]) for module in shown} <= expected


def test_every_exported_name_has_a_stability():
    """A row of the page has all names of a door, each once."""
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8").partition("## Names")[2]
    rows = re.findall(r"^\| `(spgnn[.a-z]*)` \|(.*)\|$", page, re.MULTILINE)
    assert {door: sorted(re.findall(r"`(\w+)`", names)) for door, names in rows} == doors()


def test_every_page_in_docs_is_in_the_menu():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "\n*\n" in index  # all of docs/*.md, whatever else there is
    for page in (ROOT / "docs" / "guides").glob("*.md"):
        assert f"\nguides/{page.stem}\n" in index, page
    rooms = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "api").glob("*.md"):
        assert page.stem == "index" or f"\n{page.stem}\n" in rooms, page


def test_issue_forms_are_what_github_takes():
    yaml = pytest.importorskip("yaml")
    for file in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(file.read_text(encoding="utf-8"))
        if file.stem == "config":
            assert set(form) <= {"blank_issues_enabled", "contact_links"}
            continue
        assert form["name"]
        assert form["description"]
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids)
        for field in form["body"]:
            assert field["type"] in {"textarea", "input", "checkboxes", "dropdown"}
            assert field["attributes"]["label"]
