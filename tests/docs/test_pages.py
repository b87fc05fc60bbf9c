"""Pages: links lead somewhere, pictures are what draws them, every room has its page."""

from __future__ import annotations

import ast
import re
import runpy
from xml.etree import ElementTree

import pytest

from tests.docs.pages import PAGES, ROOT, name_of, names_of_users

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


def exported() -> dict[str, set[str]]:
    """The names of each door."""
    names = {}
    for file in [*(ROOT / "spgnn").rglob("__init__.pyi"), ROOT / "spgnn/kernels/__init__.py"]:
        imports = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ImportFrom)]
        room = ".".join(file.parent.relative_to(ROOT).parts)
        names[room] = {alias.asname or alias.name for node in imports for alias in node.names}
    return names


def test_every_room_with_names_for_users_has_a_page():
    """A page may show modules of its room too."""
    pages = (ROOT / "docs" / "api").glob("*.md")
    shown = {
        module
        for page in pages
        for module in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8"))
    }
    assert {*names_of_users(), "spgnn.testing"} <= shown


def test_doors_export_what_is_promised_and_what_others_take():
    doors, promised = exported(), names_of_users()
    assert promised["spgnn"] == doors["spgnn"]
    assert {
        room: names - doors[room] for room, names in promised.items() if names - doors[room]
    } == {}
    taken: dict[str, set[str]] = {}
    for folder in ("spgnn", "experiments", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    taken.setdefault(str(node.module), set()).update(a.name for a in node.names)
    unused = {
        room: names - promised.get(room, set()) - taken.get(room, set())
        for room, names in doors.items()
        if room not in ("spgnn", "spgnn.kernels")
    }
    assert {room: names for room, names in unused.items() if names} == {}


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
