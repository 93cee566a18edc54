"""What is worth saying of flags without being a finding: an unknown version may still take them.

Evidence -> remarks -> sentences
"""

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.missing_flags import flags_alone, missing_flags, took_them


def remarks(e: Evidence) -> tuple[str, ...]:
    """Of flags of a server that is seen at work, whose version may have them; else they are a finding."""
    found = not took_them(e) and (e.release is not None or flags_alone(e))
    if e.engine not in {"vllm", ""} or e.of("unknown_flag") or found:
        return ()
    return tuple(
        f"--{flag.name} {flag.why}" + ("" if flag.why.endswith("?") else f": {flag.instead}")
        for flag in missing_flags(e)
    )
