"""One HTML file that stands alone: what a report says, with its charts inside.

title, [Section] --page--> HTML      opened from a disk, a mail or a build's artifacts alike
"""

from dataclasses import dataclass, field

import jinja2


@dataclass(frozen=True, slots=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    heading: str
    facts: tuple[tuple[str, str], ...] = ()
    """Names, and what is said of each."""
    sentences: tuple[str, ...] = ()
    table: Table | None = None
    charts: tuple[str, ...] = field(default=(), repr=False)
    """SVG, of our own making."""


_TEMPLATE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #1a202c; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; }
th, td { padding: .2rem 1.2rem .2rem 0; text-align: right; border-bottom: 1px solid #e2e8f0; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; }
dt { font-weight: 600; }
dd { margin: 0; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
footer, .said { color: #4a5568; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p class="said">{{ said }}</p>
{% for section in sections %}
<section>
<h2>{{ section.heading }}</h2>
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
{% if section.table %}
<table>
<tr>{% for cell in section.table.head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in section.table.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table>
{% endif %}
{% for chart in section.charts %}
<figure>{{ chart | safe }}</figure>
{% endfor %}
</section>
{% endfor %}
<footer><p>{{ footer }}</p></footer>
</body>
</html>
""")


def page(title: str, said: str, sections: tuple[Section, ...], footer: str) -> str:
    return _TEMPLATE.render(title=title, said=said, sections=sections, footer=footer)
