"""When an engine that died is started again, and when that is given up. No clock: it is told how long."""

from dataclasses import dataclass

QUICK_DEATH_S = 5.0
"""An engine that lived shorter than this, loading not counted, died of what will kill the next one too."""

MOST_QUICK_DEATHS = 5
"""In a row. Then the server ends, so that whoever watches over it hears of it."""

FIRST_WAIT_S = 0.5


@dataclass(slots=True)
class Restarts:
    """Counts deaths that come in quick succession."""

    quick_deaths: int = 0

    def after_death(self, lived_s: float) -> float | None:
        """Seconds to wait before the next start: 0, 0.5, 1, 2 for quick deaths in a row. None: give up.

        An engine that died while it loaded has lived 0 s.
        """
        self.quick_deaths = self.quick_deaths + 1 if lived_s < QUICK_DEATH_S else 1
        if self.quick_deaths >= MOST_QUICK_DEATHS:
            return None
        return 0.0 if self.quick_deaths == 1 else FIRST_WAIT_S * 2 ** (self.quick_deaths - 2)
