"""A diagnosis as a person reads it (worst first, three lines a finding) and as a program does.

Diagnosis -> print_diagnosis -> console        Diagnosis -> diagnosis_json -> dict
"""

from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from headrace.diagnose.doctor import Diagnosis
from headrace.diagnose.finding import Fact, Finding, Label, Severity
from headrace.diagnose.judgement import SUSPICION
from headrace.diagnose.load import load_of
from headrace.diagnose.questions import answers
from headrace.diagnose.readers.text import plain
from headrace.diagnose.remarks import remarks
from headrace.diagnose.terms import Explained, term_names
from headrace.diagnose.tested import Twin

FORMAT, VERSION = "headrace.diagnosis", 1
_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}
_INDENT = 4
_FACTS_SHOWN = 8


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, details: bool = False) -> None:
    """Everything that `headrace doctor` shows."""
    e = diagnosis.evidence
    server = " ".join(part for part in (e.engine, e.version) if part) or "a server"
    console.print(_text(f"{server}, from {', '.join(e.sources) or 'nothing'}", "bold"))
    console.print()
    if not diagnosis.findings:
        console.print(
            _text(
                "Nothing is wrong, and nothing was asked: look again while requests run."
                if load_of(e).is_idle
                else "Nothing is wrong with what this shows: no waits, room in every budget seen."
            )
        )
    for number, finding in enumerate(diagnosis.findings, start=1):
        _print_finding(number, finding, console, details=details)
    console.print()
    _print_answers(diagnosis, console, details=details)
    for note in (*remarks(e), *e.notes):
        console.print(_text(f"Note: {note}", "dim"))
    if not details and any(f.facts for f in diagnosis.findings):
        console.print(_text("--details shows the numbers, their places, prices and other causes.", "dim"))


def _print_answers(diagnosis: Diagnosis, console: Console, *, details: bool) -> None:
    """Answers first; what cannot be told is one line, and with details what to collect for each, and the
    numbers that stand under no finding.
    """
    found = answers(diagnosis)
    changes = {f.advice.change: f"as {n} says" for n, f in enumerate(diagnosis.findings, start=1)}
    shown = {fact for finding in diagnosis.findings for fact in finding.facts[:_FACTS_SHOWN]}
    for each in found:
        if not each.collect:
            said = changes.get(each.answer, each.answer)
            console.print(_text(f"{each.question} ", "bold").append(plain(said), "not bold"))
            if details:
                _print_facts(tuple(fact for fact in each.facts if fact not in shown), console)
    unknown = [each for each in found if each.collect]
    if unknown:
        asked = " ".join(each.question for each in unknown)
        console.print(_text(f"Cannot tell from this: {asked}", "dim"))
    for each in unknown if details else ():
        _indented(_text(f"{each.question} ", "dim").append(f"collect {plain(each.collect)}"), console)


def _print_finding(number: int, finding: Finding, console: Console, *, details: bool) -> None:
    labels = ", ".join((finding.label, *finding.also))
    head = _text(f"{number:2}  {finding.severity.name.lower()}  ", _STYLES[finding.severity])
    console.print(head.append(f"{labels}  ({_evidence_word(finding)})", "dim"))
    _indented(_text(finding.claim), console)
    _indented(_text("do: ", "green").append(plain(finding.advice.change)), console)
    if details:
        _print_facts(finding.facts, console)
        for name, said in _details(finding):
            _indented(_text(f"{name}: ", "dim").append(plain(said), "default"), console)


_EVIDENCE = ((0.8, "strong evidence"), (0.65, "good evidence"), (0.5, "some evidence"), (0.0, "suspicion"))


def _evidence_word(finding: Finding) -> str:
    """A rule's own word for how far it excludes other causes; nobody measured it as a probability. What is
    only suspected has no evidence, however likely.
    """
    confidence = 0.0 if finding.rule == SUSPICION else finding.confidence
    return next(word for least, word in _EVIDENCE if confidence >= least)


def _details(finding: Finding) -> Iterator[tuple[str, str]]:
    advice = finding.advice
    yield from (
        (name, said)
        for name, said in (("effect", advice.effect), ("price", advice.price), ("verify", advice.verify))
        if said
    )
    yield from (("or is it", rival) for rival in finding.rivals)
    yield "rule", finding.rule.replace("_", " ")


def _print_facts(facts: tuple[Fact, ...], console: Console) -> None:
    for fact in facts[:_FACTS_SHOWN]:
        where = f"  [{fact.where}]" if fact.where else ""
        _indented(_text(f"· {fact.text}").append(plain(where), "dim"), console)


def _indented(text: Text, console: Console) -> None:
    for line in text.wrap(console, max(20, console.width - _INDENT)):
        line.rstrip()
        console.print(Text(" " * _INDENT).append_text(line))


def _text(words: str, style: str = "") -> Text:
    """Never as markup, and without what a terminal would take for commands."""
    return Text(plain(words), style=style)


def print_twin(twin: Twin, cost: str, console: Console) -> None:
    """How well the twin stands for the server, and its bill."""
    console.print(_text(f"Twin of {cost}: ", "bold").append(plain(_agreement(twin)), "not bold"))
    parts = sorted(twin.bill.items(), key=lambda part: -part[1])
    named = ", ".join(f"{share:.0%} {name.replace('_', ' ')}" for name, share in parts[:4] if share >= 0.01)
    if twin.is_trusted and named:
        console.print(_text("Its bill of a TTFT: ", "bold").append(named, "not bold"))


def _agreement(twin: Twin) -> str:
    theirs, ours = twin.measured_ttft_s, twin.predicted_ttft_s
    if theirs is None or ours is None:
        return "the server's TTFT is not known, so nothing says how well it stands for it"
    said = f"mean TTFT {ours:.2f} s, measured {theirs:.2f} s"
    if twin.is_trusted:
        longer = f"; its steps take {twin.stretched:.2f} times as long as the cost says"
        return said + (longer if abs(twin.stretched - 1) > 0.05 else "")
    return f"{said}: too far off, so no advice was tried in it (headrace calibrate makes a better cost)"


def twin_json(twin: Twin | None) -> dict[str, object] | None:
    if twin is None:
        return None
    return {
        "trusted": twin.is_trusted,
        "ttft_mean_s": twin.predicted_ttft_s,
        "measured_ttft_mean_s": twin.measured_ttft_s,
        "ttft_p95_s": twin.run.ttft_p95_s,
        "itl_mean_s": twin.run.itl_mean_s,
        "output_tokens_per_s": twin.run.output_tokens_per_s,
        "preemptions": twin.run.preemptions,
        "bill": dict(twin.bill),
    }


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, object]:
    e = diagnosis.evidence
    return {
        "format": FORMAT,
        "version": VERSION,
        "engine": e.engine,
        "engine_version": e.version,
        "sources": list(e.sources),
        "severity": diagnosis.severity.name.lower(),
        "undetermined": [f.label for f in diagnosis.findings] == [Label.UNDETERMINED],
        "findings": [_finding_json(finding) for finding in diagnosis.findings],
        "questions": [
            {"question": a.question, "answer": a.answer, "evidence": _facts_json(a.facts)}
            for a in answers(diagnosis)
        ],
        "notes": [*remarks(e), *e.notes],
    }


def _finding_json(finding: Finding) -> dict[str, object]:
    advice = finding.advice
    return {
        "label": str(finding.label),
        "also": [str(label) for label in finding.also],
        "severity": finding.severity.name.lower(),
        "confidence": finding.confidence,
        "claim": finding.claim,
        "evidence": _facts_json(finding.facts),
        "change": advice.change,
        "effect": advice.effect,
        "price": advice.price,
        "verify": advice.verify,
        "or": list(finding.rivals),
        "rule": finding.rule,
    }


def _facts_json(facts: tuple[Fact, ...]) -> list[dict[str, str]]:
    return [{"text": fact.text, "where": fact.where} for fact in facts]


def print_terms(console: Console) -> None:
    console.print(
        _text("headrace explain TERM, where TERM is one of these, a flag, a metric or a claim:", "bold")
    )
    console.print(Padding(Text(", ".join(term_names())), (0, 0, 0, _INDENT)))


def print_explained(found: Explained, console: Console) -> None:
    for myth in found.myths:
        console.print(_text(f"Not so: {myth.claim}.", "bold yellow"))
        _indented(_text(myth.truth), console)
        _indented(_text(f"[{myth.evidence}]", "dim"), console)
    if found.gone is not None:
        until = ".".join(map(str, found.gone.until)) if found.gone.until else ""
        since = f"not in vLLM since {until}" if until else "never was a flag of vLLM"
        console.print(_text(f"--{found.gone.name} {since}.", "bold yellow"))
        _indented(_text(f"instead: {found.gone.instead}"), console)
        if found.gone.source:
            _indented(_text(f"[{found.gone.source}]", "dim"), console)
    term = found.term
    if term is None:
        return
    console.print(
        _text(term.names[0], "bold").append(f"  ({', '.join(term.names[1:])})" if term.names[1:] else "")
    )
    rows = (
        ("", term.what),
        ("budget", term.budget),
        ("higher", term.raising),
        ("lower", term.lowering),
        ("versions", term.versions),
        ("see", ", ".join(term.see)),
    )
    for name, said in rows:
        if said and said != "-":
            _indented(_text(f"{name}: " if name else "", "green").append(said), console)


def explained_json(found: Explained) -> dict[str, object]:
    term, gone = found.term, found.gone
    return {
        "asked": found.asked,
        "term": None
        if term is None
        else {
            "names": list(term.names),
            "what": term.what,
            "budget": term.budget,
            "raising": term.raising,
            "lowering": term.lowering,
            "versions": term.versions,
            "see": list(term.see),
        },
        "gone": None if gone is None else {"flag": gone.name, "until": gone.until, "instead": gone.instead},
        "myths": [{"claim": m.claim, "truth": m.truth, "evidence": m.evidence} for m in found.myths],
    }
