"""One HTML file that stands alone: what a report says, with its charts inside.

title, [Section] --page--> HTML      opened from a disk, a mail or a build's artifacts alike

Light or dark as its reader's system is; on a narrow screen tables and charts scroll, the text does not.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import jinja2


class Tone(StrEnum):
    """How a lead is to be taken, for its colour."""

    GOOD = "good"
    PLAIN = "plain"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: frozenset[int] = frozenset({0})
    """Columns of words, which begin at the left; numbers end at the right."""


@dataclass(frozen=True, slots=True)
class Section:
    heading: str
    facts: tuple[tuple[str, str], ...] = ()
    """Names, and what is said of each."""
    sentences: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    """Further sentences, as a list."""
    table: Table | None = None
    charts: tuple[str, ...] = field(default=(), repr=False)
    """SVG, of our own making."""
    commands: tuple[str, ...] = ()
    """To be copied as they are."""
    parts: tuple["Section", ...] = ()
    """Under headings of their own."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure that is to be seen first."""

    name: str
    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lead:
    """What a reader without time takes along."""

    word: str
    sentence: str
    tone: Tone
    tiles: tuple[Tile, ...] = ()


_TEMPLATE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
{% macro body(section) %}
{% if section.facts %}
<dl>
{% for name, said in section.facts %}
<dt>{{ name }}</dt><dd>{{ said }}</dd>
{% endfor %}
</dl>
{% endif %}
{% for sentence in section.sentences %}
<p>{{ sentence }}</p>
{% endfor %}
{% if section.items %}
<ul>
{% for item in section.items %}
<li>{{ item }}</li>
{% endfor %}
</ul>
{% endif %}
{% for chart in section.charts %}
<figure>{{ chart | safe }}</figure>
{% endfor %}
{% if section.table %}
<div class="wide">
<table>
<tr>{% for cell in section.table.head %}
<th{% if loop.index0 in section.table.texts %} class="text"{% endif %}>{{ cell }}</th>
{% endfor %}</tr>
{% for row in section.table.rows %}
<tr>{% for cell in row %}
{% set is_text = loop.index0 in section.table.texts %}
<td{% if is_text %} class="text{{ ' long' if cell | length > 24 }}"{% endif %}>{{ cell }}</td>
{% endfor %}</tr>
{% endfor %}
</table>
</div>
{% endif %}
{% for command in section.commands %}
<pre>{{ command }}</pre>
{% endfor %}
{% for part in section.parts %}
<h3>{{ part.heading }}</h3>
{{ body(part) }}
{% endfor %}
{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { --ink: #1a202c; --soft: #4a5568; --faint: #a0aec0; --line: #e2e8f0; --ground: #fff;
        --card: #f7fafc; --good: #276749; --bad: #9b2c2c; --plain: #2c5282; }
@media (prefers-color-scheme: dark) {
:root { --ink: #edf2f7; --soft: #a0aec0; --faint: #718096; --line: #2d3748; --ground: #171c26;
        --card: #202836; --good: #68d391; --bad: #fc8181; --plain: #63b3ed;
        --series-0: #63b3ed; --series-1: #f6ad55; --series-2: #68d391; --series-3: #b794f4;
        --series-4: #ecc94b; --series-5: #4fd1c5; --series-6: #f687b3; --series-7: #a0aec0;
        --series-8: #fc8181; --series-9: #9ae6b4; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .2rem 1.2rem .2rem 0; text-align: right; vertical-align: top;
         white-space: nowrap; border-bottom: 1px solid var(--line); }
th { white-space: normal; vertical-align: bottom; }
.text { text-align: left; }
.long { white-space: normal; min-width: 12rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; }
dt { font-weight: 600; }
dd { margin: 0; min-width: 0; }
ul { padding-left: 1.2rem; }
pre { background: var(--card); padding: .6rem .8rem; white-space: pre-wrap;
      border-radius: .3rem; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { max-width: 100%; min-width: 38rem; height: auto; }
footer, .said { color: var(--soft); }
.lead { border-left: .4rem solid; padding: .2rem 0 .2rem 1rem; margin: 1.5rem 0; }
.lead strong { letter-spacing: .03em; }
.lead p { margin: .2rem 0; font-size: 1.1rem; color: var(--ink); }
.good { color: var(--good); } .bad { color: var(--bad); } .plain { color: var(--plain); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; }
.tile { background: var(--card); border-radius: .3rem; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.25rem; }
.tile span { color: var(--soft); font-size: .9rem; }
@media (max-width: 36rem) {
dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
th, td { padding-right: .8rem; }
}
@media print { figure, tr { break-inside: avoid; } }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="said">{{ said }}</p>
{% if lead %}
<div class="lead {{ lead.tone }}"><strong>{{ lead.word }}</strong><p>{{ lead.sentence }}</p></div>
{% if lead.tiles %}
<div class="tiles">
{% for tile in lead.tiles %}
<div class="tile"><span>{{ tile.name }}</span><b>{{ tile.figure }}</b><span>{{ tile.note }}</span></div>
{% endfor %}
</div>
{% endif %}
{% endif %}
{% for section in sections %}
<section>
<h2>{{ section.heading }}</h2>
{{ body(section) }}
</section>
{% endfor %}
<footer><p>{{ footer }}</p></footer>
</body>
</html>
""")


def page(title: str, said: str, sections: tuple[Section, ...], footer: str, lead: Lead | None = None) -> str:
    return _TEMPLATE.render(title=title, said=said, sections=sections, footer=footer, lead=lead)
