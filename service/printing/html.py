"""Document as one self-contained HTML page: no scripts, no external images or fonts."""

from __future__ import annotations

from html import escape

from reportlab.graphics import renderSVG
from reportlab.graphics.shapes import Drawing

from service.printing.document import make_document
from service.printing.fonts import BOLD, CSS_FAMILY, REGULAR
from service.printing.parts import Command, Document, Facts, Figure, Paragraph, Part, Points, Seal, Section, Table

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Allows only inline styles: the page's own, and those in reportlab's figures."""
_STYLE = f"""
body {{ margin: 0; background: #fff; color: #1c2530; font: 15px/1.55 {CSS_FAMILY}; }}
main, footer {{ max-width: 46rem; margin: 0 auto; padding: 2rem 1.25rem; }}
h1, h2, th {{ color: #17526b; }}
h1 {{ font-size: 1.9rem; line-height: 1.2; border-bottom: 2px solid #17526b; padding-bottom: .5rem; margin: .3rem 0; }}
h2 {{ font-size: 1.2rem; margin: 2.4rem 0 .6rem; break-after: avoid; }}
.mark {{ color: #17526b; font-size: .75rem; font-weight: bold; letter-spacing: .12em; margin: 0; }}
.lead {{ font-size: 1.08rem; }}
table {{ border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: .84rem; }}
caption {{ text-align: left; color: #56626d; padding-bottom: .3rem; }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem .5rem; border-bottom: 1px solid #c5ced5; }}
td {{ overflow-wrap: anywhere; }}
.columns {{ table-layout: fixed; }}
thead th {{ border-bottom: 2px solid #17526b; }}
tbody th {{ font-weight: normal; color: #56626d; width: 24%; }}
.summary {{ background: #e9f0f3; border: 1px solid #17526b; font-size: .95rem; }}
.summary th {{ font-weight: bold; color: #17526b; width: 18%; }}
code {{ display: block; background: #e9f0f3; padding: .6rem .7rem; margin: .5rem 0; font-size: .82rem;
  overflow-wrap: anywhere; }}
figure {{ margin: 1.2rem 0; text-align: center; break-inside: avoid; }}
figure svg {{ max-width: 100%; height: auto; }}
.seal {{ display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start; }}
.seal figure {{ flex: 0 0 11rem; margin: 0; }}
.seal table {{ flex: 1 1 20rem; width: auto; }}
figcaption, footer {{ color: #56626d; font-size: .82rem; }}
tr {{ break-inside: avoid; }}
@page {{ size: A4; margin: 20mm; }}
@media print {{
  html {{ font-size: 12px; }} body {{ font-size: 9pt; }} main, footer {{ max-width: none; padding: 0; }}
}}
"""


def render_html(bundle: str) -> str:
    """Render a bundle. Raises Unprintable."""
    document = make_document(bundle)
    sections = "\n".join(_section(section) for section in document.sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(CONTENT_SECURITY_POLICY)}">
<title>{escape(document.footer)}</title>
<style>{_STYLE}</style>
</head>
<body>
{_opening(document)}
{sections}
</main>
<footer>{escape(document.footer)}</footer>
</body>
</html>
"""


def _opening(document: Document) -> str:
    return f"""<main>
<p class="mark">LETHE</p>
<h1>{escape(document.title)}</h1>
<p class="lead">{escape(document.lead)}</p>
{_facts(document.summary, "summary")}
{_part(document.picture) if document.picture else ""}"""


def _section(section: Section) -> str:
    return "\n".join(["<section>", f"<h2>{escape(section.title)}</h2>", *map(_part, section.parts), "</section>"])


def _part(part: Part) -> str:
    match part:
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Points(items):
            return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
        case Command(text):
            return f"<code>{escape(text)}</code>"
        case Facts():
            return _facts(part, "facts")
        case Table():
            return _table(part)
        case Seal(figure, facts):
            return f'<div class="seal">{_part(figure)}{_facts(facts, "facts")}</div>'
        case Figure(drawing, caption, description):
            return f"<figure>{_svg(drawing, description)}<figcaption>{escape(caption)}</figcaption></figure>"


def _facts(facts: Facts, kind: str) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in facts.rows)
    return f'<table class="{kind}"><tbody>{rows}</tbody></table>'


def _table(table: Table) -> str:
    header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    columns = "".join(f'<col style="width: {share:.0%}">' for share in table.shares)
    opening = f'<table class="columns"><caption>{escape(table.caption)}</caption><colgroup>{columns}</colgroup>'
    return f"{opening}<thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"


def _svg(drawing: Drawing, description: str) -> str:
    """Return reportlab's SVG without what only stand-alone files need: prologue, identifiers, its own font names."""
    svg = renderSVG.drawToString(drawing)
    inner = svg[svg.index("<g ", svg.index("</clipPath>")) : svg.rindex("</svg>")]
    for old, new in (
        ('id="group" ', ""),
        (' style="clip-path: url(#clip)"', ""),
        (f"font-family: {BOLD};", f"font-weight: bold; font-family: {CSS_FAMILY};"),
        (f"font-family: {REGULAR};", f"font-family: {CSS_FAMILY};"),
    ):
        inner = inner.replace(old, new)
    size = f'viewBox="0 0 {drawing.width:g} {drawing.height:g}" width="{1.4 * drawing.width:g}"'
    return (
        f'<svg {size} role="img" aria-label="{escape(description)}"><title>{escape(description)}</title>{inner}</svg>'
    )
