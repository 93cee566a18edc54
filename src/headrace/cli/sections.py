"""Help pages whose options stand under headings."""

from collections.abc import Mapping, Sequence
from typing import Any

import click


class SectionedCommand(click.Command):
    """A command that lists its options by section; what is in none comes last."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = (each for each in self.get_params(ctx) if isinstance(each, click.Option))
        records = {option.name: option.get_help_record(ctx) for option in options}
        sections = {
            title: [record for name in names if (record := records.pop(name, None))]
            for title, names in self._sections.items()
        }
        sections["Other"] = [record for record in records.values() if record]
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
