"""Where decode steps go, as bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from tools._decode_steps import PARTS, Case, Found

COLOURS = dict(zip(PARTS, ("#2f6db3", "#c0803a", "#5a9a68", "#8a6bb8", "#888888"), strict=True))
MARGIN, LEFT, WIDTH = 10, 170, 480
"""Of the page; where bars begin, and how long they are."""
BAR, GAP, TOP = 16, 14, 94
"""A bar with what parts it from the next one; between batches; where bars begin."""
WIDE = 0.64
"""Of a letter, in font sizes: what wide fonts take."""


def chart(found: Mapping[Case, Found | str], title: str) -> str:
    """Bars of each case with the most threads: shares of the parts, the cost beside them (SVG)."""
    threads = max(case.threads for case in found)
    shown = {
        case: of for case, of in found.items() if case.threads == threads and isinstance(of, Found)
    }
    costs = [_cost(case, of) for case, of in shown.items()]
    of_title = f"{title}; {threads} thread{'s' * (threads > 1)}"
    beside = max(map(len, costs), default=0) * 12 * WIDE
    page = round(max(LEFT + WIDTH + 8 + beside, MARGIN + len(of_title) * 12 * WIDE) + MARGIN)
    height = TOP + len(shown) * BAR + len({case.batch for case in shown}) * GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {page} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{page}" height="{height}" fill="#fff"/>',
        f'<text x="{MARGIN}" y="22" font-size="14" font-weight="600">'
        "where an eager decode step goes, and what a served one costs</text>",
        f'<text x="{MARGIN}" y="42">{escape(of_title)}</text>',
        f'<text x="{LEFT - 8}" y="72" text-anchor="end">context</text>',
        *_legend(),
        *_bars(shown),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _legend() -> Iterator[str]:
    for index, (part, colour) in enumerate(COLOURS.items()):
        x = LEFT + index * WIDTH // len(COLOURS)
        yield f'<rect x="{x}" y="62" width="11" height="11" fill="{colour}"/>'
        yield f'<text x="{x + 16}" y="72">{part}</text>'


def _bars(shown: Mapping[Case, Found]) -> Iterator[str]:
    y, last = TOP - GAP, None
    for case, of in shown.items():
        if case.batch != last:
            y, last = y + GAP, case.batch
            yield f'<text x="{MARGIN}" y="{y + 11}" font-weight="600">batch {case.batch:,}</text>'
        yield f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end">{case.context:,}</text>'
        x, total = float(LEFT), sum(of.parts.values())
        for part, colour in COLOURS.items():
            length = WIDTH * of.parts[part] / total
            yield (
                f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{BAR - 3}" '
                f'fill="{colour}"/>'
            )
            x += length
        yield f'<text x="{LEFT + WIDTH + 8}" y="{y + 11}">{_cost(case, of)}</text>'
        y += BAR


def _cost(case: Case, of: Found) -> str:
    return f"{of.step:,.1f} ms, {of.step / case.batch * 1e3:,.0f} µs a token"
