"""What the server, a library, the kernel or a proxy says in plain words: lines that name their own cause."""

from collections.abc import Iterator

from headrace.diagnose.causes import causes
from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.messages import SAYS_ENOUGH, Message, messages
from headrace.diagnose.rules.settings import is_speed_asked
from headrace.diagnose.rules.support import has_load, out_of_memory, said, start_failed


def names_its_cause(e: Evidence) -> Iterator[Finding]:
    """What ends a process says why in its last lines; what only slows it warns once, and counts where speed
    is asked after or nothing else was told.
    """
    if out_of_memory(e) or start_failed(e):
        return
    for message in messages().values():
        lines = e.of(message.kind)
        if not lines or message.weight < SAYS_ENOUGH or not _counts(e, message):
            continue
        todo = causes()[message.label]
        strong = message.weight >= 2
        yield Finding(
            message.label,
            message.says,
            tuple(said(line) for line in lines[:2]),
            Advice(message.change or todo.change, "the line is gone", verify=todo.confirm),
            Severity.CRITICAL if message.fatal else Severity.WARNING,
            0.7 if strong else 0.55,
            also=message.also,
            explains=frozenset({Label.UNDETERMINED, Label.STALL} if message.fatal else {Label.UNDETERMINED}),
        )


def _counts(e: Evidence, message: Message) -> bool:
    if message.needs == "speed":
        return is_speed_asked(e) or not has_load(e)
    return message.needs != "unready" or not e.counts.get("ready")


RULES = (names_its_cause,)
