"""Values of a `config.json`, checked as they are taken."""

from collections.abc import Mapping

from headrace.core.errors import BadInput


class ConfigValues:
    """Knows types, and nothing of what the names mean. `name` is the model's, for messages."""

    def __init__(self, values: Mapping[str, object], name: str) -> None:
        self.values = values
        self._name = name

    def number(self, *keys: str) -> int:
        """Of keys that mean the same, the one that is there. Raises `BadInput` if none holds a number."""
        key = next((each for each in keys if self.values.get(each) is not None), keys[0])
        value = self.values.get(key)
        if value is None:
            raise BadInput(
                f"{self._name}: its config.json says no {' or '.join(keys)}",
                "is it that of a language model?",
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(
                f"{self._name}: {key} is {value!r} in config.json; a whole number above 0 is needed"
            )
        return value

    def optional(self, *keys: str) -> int:
        """The same; 0 if none is there."""
        return next((self.number(key) for key in keys if self.values.get(key)), 0)

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def flag(self, key: str) -> bool:
        return self.values.get(key) is True

    def items(self, key: str) -> list[object]:
        value = self.values.get(key)
        return list(value) if isinstance(value, list) else []

    def mapping(self, key: str) -> Mapping[str, object]:
        value = self.values.get(key)
        return {str(name): each for name, each in value.items()} if isinstance(value, Mapping) else {}

    def refused(self, what: str, hint: str = "") -> BadInput:
        return BadInput(f"{self._name}: {what}", hint)
