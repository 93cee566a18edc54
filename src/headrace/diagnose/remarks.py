"""What is worth saying of flags without being a finding: an unknown version may still take them.

Evidence -> remarks -> sentences
"""

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.missing_flags import flags_alone, missing_flags, missing_variables, took_them


def remarks(e: Evidence) -> tuple[str, ...]:
    """Of flags of a server that is seen at work, whose version may have them; else they are a finding."""
    if e.engine not in {"vllm", ""}:
        return ()
    found = not took_them(e) and (e.release is not None or flags_alone(e))
    flags = () if e.of("unknown_flag") else missing_flags(e)
    flags = tuple(flag for flag in flags if not found or (flag.is_stranger and not flags_alone(e)))
    variables = () if flags_alone(e) else missing_variables(e)
    return tuple(
        f"{each.said} {each.why}" + ("" if each.why.endswith("?") else f": {each.instead}")
        for each in (*flags, *variables)
    )
