"""Draw the pictures of concepts and examples: `python docs/pictures.py` writes docs/pictures/*.svg.

What they show of a small graph is computed, not drawn by hand: which rows a block needs, what a
vertex cut copies, the receptive field of a loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import combinations, pairwise
from pathlib import Path

FILL = ("#ddf4ff", "#fff1e5", "#dafbe1", "#fbefff")
LINE = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")
INK, GREY, PALE, NEEDED = "#1f2328", "#57606a", "#d0d7de", "#9a6700"
DIRECTORY = Path(__file__).with_name("pictures")

# A ring of twelve vertices with five chords; every vertex is its own neighbour as well.
VERTICES, RANKS = 12, 4
EDGES = [(v, (v + 1) % VERTICES) for v in range(VERTICES)] + [
    (0, 4), (1, 9), (3, 10), (5, 8), (6, 11),
]  # fmt: skip
ADJACENT = {(v, v) for v in range(VERTICES)} | set(EDGES) | {(b, a) for a, b in EDGES}


def owner(vertex: int, parts: int = RANKS) -> int:
    """The part of a vertex when the parts are runs of equal length."""
    return vertex * parts // VERTICES


class Picture:
    """Shapes in one style; coordinates are pixels of a page about as wide as a telephone's."""

    def __init__(self, title: str, height: int, width: int = 520) -> None:
        self.width = width
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" role="img" font-family="system-ui, sans-serif" font-size="14">',
            f"<title>{title}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" '
            'fill="context-stroke"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
        ]

    def box(
        self, x: float, y: float, w: float, h: float, rank: int | None = None, **style: object
    ) -> None:
        """A rectangle in the colours of a rank, or in grey."""
        look: dict[str, object] = {
            "fill": "#f6f8fa" if rank is None else FILL[rank % 4],
            "stroke": PALE if rank is None else LINE[rank % 4],
            **style,
        }
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" {_written(look)}/>')

    def dot(
        self, x: float, y: float, rank: int | None = None, r: float = 6, **style: object
    ) -> None:
        """A filled circle: a nonzero, or a vertex."""
        look = {"fill": PALE if rank is None else LINE[rank % 4], **style}
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="{r}" {_written(look)}/>')

    def text(self, x: float, y: float, words: str, **style: object) -> None:
        """One line of words, which must fit in the widest of usual fonts."""
        look = {"fill": INK, **style}
        size = float(str(style.get("font_size", 14)))
        width = len(words) * size * (0.6 if "font_weight" in style else 0.53)
        left = x - width * {"middle": 0.5, "end": 1.0}.get(str(style.get("text_anchor")), 0.0)
        if "transform" not in style and not 0 <= left <= left + width <= self.width:
            raise ValueError(f"cut off, from {left:.0f} to {left + width:.0f}: {words}")
        self.parts.append(f'<text x="{x}" y="{y}" {_written(look)}>{words}</text>')

    def arrow(
        self, *points: tuple[float, float], colour: str = INK, head: bool = True, **style: object
    ) -> None:
        """A line along points, with a head at its end."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        look = {"stroke": colour, "stroke-width": 1.6, "fill": "none", **style}
        end = ' marker-end="url(#head)"' if head else ""
        self.parts.append(f'<path d="{path}" {_written(look)}{end}/>')

    def source(self) -> str:
        """The SVG file."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def _written(style: dict[str, object]) -> str:
    return " ".join(f'{key.replace("_", "-")}="{value}"' for key, value in style.items())


BOLD = {"font_weight": "bold"}
MIDDLE = {"text_anchor": "middle"}


def _strip(picture: Picture, x: float, y: float, cell: float, width: int) -> None:
    """A tall matrix whose rows have the colours of their owners."""
    for row in range(VERTICES):
        picture.box(x, y + row * cell, width, cell, owner(row))


def _matrix(
    picture: Picture,
    place: tuple[float, float],
    cell: float,
    colour: Callable[[int, int], int | None],
    frames: Iterable[tuple[int, int, int, int]],
) -> None:
    """The adjacency; `colour` of a nonzero is that of a rank, `frames` (y, x, h, w) cut blocks."""
    (x, y), side = place, VERTICES * cell
    picture.box(x, y, side, side, fill="#fff")
    for row, column in sorted(ADJACENT):
        picture.dot(
            x + (column + 0.5) * cell, y + (row + 0.5) * cell, colour(row, column), r=cell * 0.3
        )
    for top, left, height, width in frames:
        picture.box(
            x + left * cell, y + top * cell, width * cell, height * cell, fill="none", stroke=GREY
        )


def travel() -> Picture:
    """One row of H, from its owner to a row of Z."""
    picture = Picture("A row of H on its way from rank k to rank i", 420)
    for y, title, words in ((16, 40, "rank k owns row v of H"), (254, 392, "rank i has A[u, v]")):
        picture.box(16, y, 488, 150, rx=8)
        picture.text(30, title, words, **BOLD)
    yellow, green = {"fill": "#fff8c5", "stroke": NEEDED}, {"fill": FILL[2], "stroke": LINE[2]}
    for top, name, place, colours in ((50, "H[v]", 66, yellow), (266, "Z[u]", 328, green)):
        picture.box(34, top, 56, 104, fill="#fff")
        picture.box(34, place, 56, 22, **colours)
        picture.text(62, place + 16, name, **MIDDLE)
    steps = (("S: select row v", "R: A[u, v] · row v"), ("S: or sum A[u, ·] H", "R: add sum to u"))
    for x, (sends, receives) in zip((179, 321), steps, strict=True):
        for y, words, colours in ((112, sends, yellow), (270, receives, green)):
            picture.box(x - 67, y, 134, 30, **colours)
            picture.text(x, y + 20, words, **MIDDLE, font_size=13)
        picture.arrow((92, 77), (x, 77), (x, 110))
        picture.arrow((x, 144), (x, 268))
        picture.arrow((x, 302), (x, 339), (94, 339))
    picture.box(400, 270, 92, 30, 0)
    picture.text(446, 290, "L · H", **MIDDLE)
    picture.text(446, 320, "meanwhile", **MIDDLE, font_size=13, fill=GREY)
    picture.arrow((446, 326), (446, 339), (94, 339))
    picture.text(334, 202, "Π: all-to-allv,", **BOLD)
    picture.text(334, 222, "once per row and rank")
    return picture


def one_dimension() -> Picture:
    """Who needs which rows in 1D."""
    me, cell, top = 1, 18, 52
    picture = Picture("1D: a rank receives the rows of H that its nonzero columns need", 284)
    own = [row for row in range(VERTICES) if owner(row) == me]
    needed = sorted({c for r, c in ADJACENT if r in own and owner(c) != me})
    picture.text(40, 38, "Z", **BOLD)
    picture.text(100, 38, "A: rows by owner", **BOLD)
    picture.text(346, 38, "H", **BOLD)
    _strip(picture, 30, top, cell, 36)
    _matrix(
        picture, (90, top), cell,
        lambda row, column: owner(column) if owner(row) == me else None,
        [(3 * rank, 0, 3, VERTICES) for rank in range(RANKS)],
    )  # fmt: skip
    picture.box(
        90, top + own[0] * cell, 12 * cell, 3 * cell, fill="none", stroke=LINE[me], stroke_width=3
    )
    _strip(picture, 336, top, cell, 36)
    for row in range(VERTICES):
        picture.text(354, top + row * cell + 13, str(row), font_size=12, **MIDDLE)
    for row in needed:
        y = top + (row + 0.5) * cell
        picture.box(
            336, top + row * cell + 1, 36, cell - 2, fill="none", stroke=NEEDED, stroke_width=3
        )
        picture.arrow(
            (374, y), (426, y), (426, top + 4.5 * cell), colour=LINE[owner(row)], head=False
        )
    picture.box(392, top + 3 * cell, 112, 3 * cell, me)
    picture.text(448, top + 3 * cell + 24, "rank 1 receives", **MIDDLE)
    picture.text(448, top + 3 * cell + 43, ", ".join(map(str, needed)), **BOLD, **MIDDLE)
    return picture


def one_and_a_half() -> Picture:
    """1.5D on a 2 × 2 grid of ranks."""
    cell, top = 18, 52
    picture = Picture("1.5D: rows of H move along one axis of ranks, sums along the other", 284)
    picture.text(40, 38, "Z", **BOLD)
    picture.text(100, 38, "A: colour = who multiplies", **BOLD)
    picture.text(346, 38, "H", **BOLD)
    _strip(picture, 30, top, cell, 36)

    def multiplies(row: int, column: int) -> int:
        return 2 * owner(row, 2) + owner(column) % 2

    _matrix(
        picture, (90, top), cell, multiplies,
        [(6 * i, 3 * k, 6, 3) for i in range(2) for k in range(4)],
    )  # fmt: skip
    _strip(picture, 336, top, cell, 36)
    for rank in range(RANKS):
        y = top + (3 * rank + 1.5) * cell
        picture.text(382, y + 5, f"rank ({rank // 2}, {rank % 2})", fill=LINE[rank])
    for column, (first, second) in enumerate(((0, 2), (1, 3))):
        x = 462 + 22 * column
        ys = [top + (3 * rank + 1.5) * cell for rank in (first, second)]
        picture.arrow((454, ys[0]), (x, ys[0]), (x, ys[1]), (454, ys[1]), colour=NEEDED, head=False)
    return picture


def feature() -> Picture:
    """Turn to shares of the columns, multiply, and turn back."""
    picture = Picture("Feature-parallel: a share of the columns on every rank", 220)
    size, top = 96, 60

    def by_rows(x: float) -> None:
        for rank in range(RANKS):
            picture.box(x, top + rank * size / 4, size, size / 4, rank)

    def by_columns(x: float) -> None:
        for rank in range(RANKS):
            picture.box(x + rank * size / 4, top, size / 4, size, rank)

    by_rows(20)
    by_columns(212)
    by_columns(404)
    picture.text(68, 44, "H, rows whole", **BOLD, **MIDDLE)
    picture.text(260, 44, "H, all rows", **BOLD, **MIDDLE)
    picture.text(452, 44, "A·H", **BOLD, **MIDDLE)
    picture.arrow((122, 108), (206, 108))
    picture.text(164, 98, "turn", **MIDDLE)
    picture.arrow((314, 108), (398, 108))
    picture.text(356, 98, "A · …", **MIDDLE)
    picture.arrow((452, 164), (452, 200), (68, 200), (68, 164))
    picture.text(260, 192, "turn back: rows of Z are whole again", **MIDDLE)
    return picture


def _grid(picture: Picture, x: float, y: float, side: float, first: int = 0) -> None:
    for i in range(3):
        for j in range(3):
            picture.box(x + j * side, y + i * side, side, side, i if first == 0 else first)


def grids() -> Picture:
    """2D and 3D: axes of ranks."""
    picture = Picture("2D and 3D: ranks in a square and in a cube", 250)
    picture.text(40, 36, "2D: √P × √P ranks", **BOLD)
    _grid(picture, 50, 64, 44)
    picture.arrow((36, 66), (36, 194), colour=NEEDED, marker_start="url(#head)")
    picture.text(18, 136, "“row”: expand", transform="rotate(-90 22 136)", **MIDDLE, font_size=13)
    picture.arrow((52, 212), (180, 212), colour=NEEDED, marker_start="url(#head)")
    picture.text(116, 232, "“replica”: fold", **MIDDLE, font_size=13)
    picture.text(290, 36, "3D: ∛P × ∛P × ∛P ranks", **BOLD)
    for layer in (2, 1, 0):
        _grid(picture, 300 + 26 * layer, 98 - 20 * layer, 38, 0 if layer == 0 else 3)
    picture.arrow((420, 222), (474, 180), colour=NEEDED, marker_start="url(#head)")
    picture.text(446, 222, "“feature”:", font_size=13)
    picture.text(446, 238, "turn", font_size=13)
    return picture


def vertex_cut() -> Picture:
    """Edges are owned; a vertex is where its edges are."""
    picture = Picture("Vertex cut: edges have owners, vertices have copies", 264)
    places = ((110, 92), (262, 92), (414, 92))
    kept = ((150, 210, 270, 330), (200, 250, 290, 340), (210, 260, 320, 10))
    for rank, ((x, y), angles) in enumerate(zip(places, kept, strict=True)):
        picture.box(x - 70, 30, 140, 150, rank)
        picture.text(x - 62, 50, f"rank {rank}", **BOLD)
        for angle in angles:
            a = math.radians(angle)
            end = (round(x + 50 * math.cos(a)), round(y + 24 - 44 * math.sin(a)))
            picture.arrow((x, y + 24), end, colour=LINE[rank], head=False)
            picture.dot(*end, rank, r=5)
        picture.dot(x, y + 24, r=13, fill="#fff", stroke=LINE[rank], stroke_width=3 if rank else 5)
        picture.text(x, y + 29, "v", **BOLD, **MIDDLE)
    picture.text(172, 50, "owner of v", text_anchor="end", font_size=13)
    for x in (262, 414):
        picture.arrow((110, 184), (110, 206), (x - 10, 206), (x - 10, 184), colour=INK)
        picture.arrow((x + 10, 184), (x + 10, 236), (96, 236), (96, 184), colour=NEEDED)
    picture.text(186, 201, "expand H[v]", **MIDDLE, font_size=13)
    picture.text(186, 253, "fold: add the sums", **MIDDLE, font_size=13)
    return picture


def hierarchy() -> Picture:
    """What crosses between nodes, flat and in two levels."""
    picture = Picture("Hierarchy: a row crosses between nodes once", 340)
    for top, name, levels in ((24, "flat: row v crosses three times", False),
                              (188, "hierarchy: it crosses once", True)):  # fmt: skip
        picture.text(20, top + 6, name, **BOLD)
        for node, x in enumerate((20, 380)):
            picture.box(x, top + 18, 120, 118)
            for local in range(4):
                rank, y = 4 * node + local, top + 26 + 27 * local
                has = rank in (1, 4, 5, 7)
                picture.box(x + 16, y, 88, 22, node if has else None)
                wants = "" if rank not in (1, 4, 5, 7) else (": v" if rank == 1 else " ← v")
                picture.text(x + 24, y + 16, f"rank {rank}{wants}", font_size=13)
        start = (124.0, top + 64.0)
        for local in (0, 1, 3):
            y = top + 37 + 27 * local
            if local == 1 or not levels:
                picture.arrow(start, (394, y), colour=LINE[0])
            else:
                picture.arrow((484, top + 64), (494, top + 64), (494, y), (486, y), colour=LINE[1])
    return picture


def recomputed_halo() -> Picture:
    """A rank recomputes rows instead of receiving them."""
    picture = Picture("Recomputed halo: a hidden row is computed, not received", 296)
    for x, name, rank in ((20, "rank k owns v", 0), (300, "rank i needs H¹[v]", 1)):
        picture.text(x, 30, name, **BOLD)
        for level, label in enumerate(("H²", "H¹", "A·X")):
            y = 46 + 74 * level
            picture.box(x, y, 140, 44, rank)
            picture.text(x + 10, y + 27, label)
            if level:
                picture.arrow((x + 50, y - 2), (x + 50, y - 28), colour=GREY)
    picture.box(112, 128, 40, 28, fill="#fff8c5", stroke=NEEDED)
    picture.text(132, 147, "v", **MIDDLE)
    picture.box(112, 202, 40, 28, fill="#fff8c5", stroke=NEEDED)
    picture.text(132, 221, "v", **MIDDLE)
    for y in (128, 202):
        picture.box(452, y, 40, 28, fill="#fff8c5", stroke=NEEDED, stroke_dasharray="4 3")
        picture.text(472, y + 19, "v", **MIDDLE)
    picture.arrow((472, 200), (472, 160), colour=NEEDED)
    picture.arrow(
        (154, 142), (210, 142), (210, 120), (296, 120), colour=LINE[3], stroke_dasharray="2 4"
    )
    picture.text(228, 112, "every epoch", **MIDDLE, fill=LINE[3], font_size=13)
    picture.arrow((154, 216), (190, 216), (190, 262), (472, 262), (472, 234), colour=NEEDED)
    picture.text(300, 280, "once, before training", **MIDDLE, fill=NEEDED, font_size=13)
    return picture


def receptive_field() -> Picture:
    """The rows that the loss needs, layer by layer."""
    labelled = {5}
    made = [labelled]
    for _ in range(2):
        made.append({c for r, c in ADJACENT if r in made[-1]})
    picture = Picture("Receptive field: only rows that the loss needs are made", 296)
    picture.text(20, 30, "Which rows each layer makes, if vertex 5 alone is labelled", **BOLD)

    def place(vertex: int, level: int) -> tuple[float, float]:
        return 110 + 34 * vertex, 66 + 70 * level

    rows = [*made, {c for r, c in ADJACENT if r in made[-1]}]
    names = ("loss", "layer 2", "layer 1", "input")
    for level, name in enumerate(names):
        needed = {0: labelled, 1: rows[0], 2: rows[1], 3: rows[2]}[level]
        picture.text(20, 71 + 70 * level, name)
        for vertex in range(VERTICES):
            x, y = place(vertex, level)
            if level and level < len(names):
                for other in rows[level - 2] if level > 1 else labelled:
                    if level > 1 and (other, vertex) in ADJACENT and vertex in needed:
                        picture.arrow(
                            (x, y - 9), _below(place(other, level - 1)), colour=PALE, head=False
                        )
                    elif level == 1 and other == vertex:
                        picture.arrow((x, y - 9), _below(place(other, 0)), colour=PALE, head=False)
            if vertex in needed:
                picture.dot(x, y, 0, r=9)
                picture.text(x, y + 5, str(vertex), fill="#fff", font_size=12, **MIDDLE)
            else:
                picture.dot(x, y, r=9, fill="#fff", stroke=PALE)
    return picture


def gains() -> Picture:
    """How many times fewer bytes exact schemes move than the code of the ICPP'24 paper."""
    page = Path(__file__).parents[1] / "benchmarks" / "results" / "bytes.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    mean = next(line for line in lines if line.startswith("| geometric mean"))
    cover, recomputed, *_, pruned, _ = (
        float(cell) for cell in mean.split("|")[3:-1] if cell.strip()
    )
    bars = (
        ("sparsity-aware 1D, METIS (ICPP'24)", 1.0),
        ("narrower of H and HW, minimum covers, gvb", cover),
        ("… and a recomputed halo", recomputed),
        ("… and only what the loss needs", pruned),
    )
    what = "Bytes that the busiest of 64 ranks sends or receives"
    picture = Picture(what, 40 + 34 * len(bars))
    picture.text(20, 26, what, **BOLD)
    for place, (name, times) in enumerate(bars):
        y = 40 + 34 * place
        picture.box(20, y, round(480 / times, 1), 24, place)
        label = name if times == 1 else f"{name}: 1/{times:g}"
        picture.text(28 if times == 1 else 30 + 480 / times, y + 17, label, font_size=13)
    return picture


def recommender() -> Picture:
    """Users and items, each with an owner; the loss pulls one item and pushes another."""
    picture = Picture("Users and items: who has interacted with what, and where rows live", 230)
    for words, y in (("users", 50), ("items", 190)):
        picture.text(20, y + 5, words, **BOLD)
    for user in range(8):
        x = 110 + 54 * user
        for item in {user * 5 % 7, (user * 3 + 2) % 7, (user + 4) % 7}:
            other = 130 + 58 * item, 178.0
            picture.arrow((x, 60), other, colour=PALE if user != 2 else GREY, head=False)
        picture.dot(x, 50, user // 2, r=10)
    for item in range(7):
        picture.dot(130 + 58 * item, 190, item * RANKS // 7, r=10)
    picture.text(218, 24, "score = ⟨z, z⟩ after three products", **MIDDLE, font_size=13)
    picture.text(260, 222, "colours: ranks; a row of the table lives at one", **MIDDLE, fill=GREY)
    return picture


def fraud() -> Picture:
    """Three types, two relations: rings share devices."""
    picture = Picture("Users, transactions and devices; a ring shares two devices", 240)
    for words, y in (("users", 40), ("transactions", 120), ("devices", 200)):
        picture.text(16, y + 5, words, **BOLD)
    for user in range(6):
        x, ring = 150 + 66 * user, user < 3
        picture.box(x - 9, 31, 18, 18, 0)
        for payment in (0, 1):
            y, here = 120, x - 14 + 28 * payment
            device = 165 + 66 * (payment if ring else user)
            picture.arrow((x, 50), (here, y - 8), colour=GREY, head=False)
            picture.arrow((here, y + 8), (device, 190), colour=GREY, head=False)
            picture.dot(here, y, 1 if ring else 2, r=7)
    for device in (0, 1, 3, 4, 5):
        picture.box(156 + 66 * device, 190, 18, 18, 3)
    picture.text(150, 232, "orange: fraud, as others of the device say", fill=GREY)
    return picture


def molecules() -> Picture:
    """Atoms in two boxes: who is needed beyond the border, within a cutoff."""
    picture = Picture("Atoms of two ranks: those within the cutoff of the border travel", 250)
    atoms = [
        (60 + 46 * column + 14 * math.sin(7.0 * row + 3.0 * column),
         50 + 44 * row + 12 * math.cos(5.0 * column + 2.0 * row))
        for row in range(4) for column in range(10)
    ]  # fmt: skip
    border, cutoff = 268, 62
    picture.arrow((border, 18), (border, 216), colour=PALE, head=False, stroke_dasharray="5 4")
    for (x, y), (u, v) in combinations(atoms, 2):
        if math.dist((x, y), (u, v)) < cutoff:
            crosses = (x < border) != (u < border)
            colour = NEEDED if crosses else PALE
            picture.arrow((round(x), round(y)), (round(u), round(v)), colour=colour, head=False)
            if crosses:
                for at, height in ((x, y), (u, v)):
                    ring = {"fill": "none", "stroke": NEEDED, "stroke_width": 3}
                    picture.dot(round(at), round(height), r=10, **ring)
    for x, y in atoms:
        picture.dot(round(x), round(y), int(x > border), r=7)
    picture.text(40, 240, "energy of pairs; forces are its gradient, through the halo", fill=GREY)
    return picture


def weather() -> Picture:
    """A grid, a coarser mesh with edges of its own, and the grid again."""
    picture = Picture("Encoder, processor, decoder between a grid and a mesh", 230)
    grid = [28 + 42 * point for point in range(12)]
    mesh = [49 + 84 * point for point in range(6)]
    for y, next_y, down in ((40, 115, True), (115, 190, False)):
        for place in grid:
            near = min(mesh, key=lambda point: abs(point - place))
            start, end = ((place, y), (near, next_y)) if down else ((near, y), (place, next_y))
            picture.arrow(start, end, colour=PALE, head=False)
    for one, (a, b) in enumerate(pairwise(mesh)):
        colour = NEEDED if one * RANKS // 6 != (one + 1) * RANKS // 6 else GREY
        picture.arrow((a + 10, 115), (b - 10, 115), colour=colour, head=False)
    for y in (40, 190):
        for number, place in enumerate(grid):
            picture.dot(place, y, owner(number), r=6)
    for number, place in enumerate(mesh):
        picture.dot(place, 115, number * RANKS // 6, r=10)
    for words, y in (("grid, encoded", 22), ("mesh, processed several times", 96)):
        picture.text(260, y, words, **MIDDLE, font_size=13)
    picture.text(260, 218, "grid, decoded", **MIDDLE, font_size=13)
    return picture


def changing() -> Picture:
    """What one new edge reaches in two layers; all else stays."""
    picture = Picture("An edge is added: rows that change, layer by layer", 240)
    changed = [set(), {6}]
    changed.append({row for row, column in ADJACENT if column in changed[1]})
    for layer, words in enumerate(("x", "layer 1", "layer 2")):
        y = 200 - 76 * layer
        picture.text(16, y + 5, words, **BOLD)
        for vertex in range(VERTICES):
            x = 100 + 36 * vertex
            if layer:
                for source in range(VERTICES):
                    if (vertex, source) in ADJACENT and vertex in changed[layer]:
                        colour = GREY if source in changed[layer - 1] else PALE
                        below = 100 + 36 * source, y + 67
                        picture.arrow(below, (x, y + 9), colour=colour, head=False)
            picture.dot(x, y, 1 if vertex in changed[layer] else None, r=9)
    picture.arrow((100, 191), (316, 133), colour=LINE[1], **{"stroke-width": 3})
    picture.text(100, 230, "0", **MIDDLE)
    picture.text(316, 112, "6", **MIDDLE)
    picture.text(300, 24, "orange: computed again", **MIDDLE, fill=GREY)
    return picture


def chunks() -> Picture:
    """Out of core: some columns in memory, rows of A chunk by chunk from a disk."""
    picture = Picture("Larger than memory: columns in memory, rows of A from a disk", 240)
    cell, top = 14, 40
    for chunk in range(RANKS):
        picture.box(20, top + 42 * chunk, 12 * cell, 40, 0 if chunk == 1 else None)
    for row, column in sorted(ADJACENT):
        y = top + 42 * (row // 3) + 13 * (row % 3) + 7
        picture.dot(20 + (column + 0.5) * cell, y, 0 if row // 3 == 1 else None, r=4)
    picture.text(20, 28, "A, on a disk: by chunks", **BOLD)
    for column in range(4):
        picture.box(262 + 26 * column, top, 24, 166, 2 if column < 2 else None)
    picture.text(262, 28, "H: as many columns as fit", **BOLD)
    picture.box(436, top + 42, 52, 40, 0)
    picture.text(462, top + 67, "Z", **MIDDLE)
    picture.arrow((192, top + 62), (256, top + 62))
    picture.arrow((370, top + 62), (430, top + 62))
    picture.text(20, 230, "no row is looked up on the disk: all reads are long", fill=GREY)
    return picture


def _below(place: tuple[float, float]) -> tuple[float, float]:
    return place[0], place[1] + 9


PICTURES = {
    "travel": travel,
    "1d": one_dimension,
    "15d": one_and_a_half,
    "feature": feature,
    "grids": grids,
    "vertex-cut": vertex_cut,
    "hierarchy": hierarchy,
    "recomputed-halo": recomputed_halo,
    "receptive-field": receptive_field,
    "gains": gains,
    "recommender": recommender,
    "fraud": fraud,
    "molecules": molecules,
    "weather": weather,
    "changing": changing,
    "chunks": chunks,
}

if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (DIRECTORY / f"{name}.svg").write_text(draw().source(), encoding="utf-8")
