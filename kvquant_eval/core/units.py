"""Units of measurement behind a number: spellings of one unit are one, and nothing is converted."""

from __future__ import annotations

import re

Unit = tuple[tuple[str, int], ...]
"""(name, power) by name: ``km/h`` is ``(("h", -1), ("km", 1))``."""

_SPELLINGS = {
    "km": "kilometer kilometre", "m": "meter metre", "cm": "centimeter centimetre", "mm": "millimeter millimetre",
    "mi": "mile", "yd": "yard", "ft": "foot feet", "inch": "inches",
    "kg": "kilo kilogram", "g": "gram", "mg": "milligram", "lb": "lbs", "oz": "ounce", "t": "ton tonne",
    "ms": "millisecond", "s": "sec second", "min": "minute", "h": "hr hour", "day": "", "week": "", "month": "",
    "year": "yr", "L": "l liter litre", "mL": "ml milliliter millilitre", "gal": "gallon", "dollar": "USD usd",
    "cent": "", "euro": "EUR eur", "°": "degree deg", "°C": "celsius", "°F": "fahrenheit", "N": "newton", "J": "joule",
    "kJ": "kilojoule", "W": "watt", "kW": "kilowatt", "kWh": "", "V": "volt", "Pa": "pascal", "Hz": "hertz",
    "mol": "mole", "byte": "", "kB": "KB kilobyte", "MB": "megabyte", "GB": "gigabyte",
}  # fmt: skip
_NAMES = {
    spelling: name
    for name, spellings in _SPELLINGS.items()
    for word in (name, *spellings.split())
    for spelling in (word, f"{word}s")
}
_WHOLE = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "sqft": "ft^2", "sqm": "m^2"}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_END = re.compile(r"[,;:!?()\[\]\n]|\.(?=\s|$)")
_TOKENS = 4
"""``square kilometers per hour``: words of the longest unit."""
_LONGEST = 80


def unit_of(text: str) -> Unit | None:
    """The unit that ``text`` (what stands behind a number) begins with; None where it is none that is known."""
    text = _END.split(text[:_LONGEST], maxsplit=1)[0]
    text = text.replace("²", "^2").replace("³", "^3")
    text = re.sub(r"\s*+\^\s*+\{?([23])\}?", r"^\1", text)
    words = re.sub(r"\s*+/\s*+|\s++per\s++", "/", text).split()
    for count in range(min(_TOKENS, len(words)), 0, -1):
        if (unit := _read(words[:count])) is not None:
            return unit
    return None


def _read(words: list[str]) -> Unit | None:
    """The unit that the words are, all of them."""
    powers: dict[str, int] = {}
    for index, part in enumerate(_WHOLE.get(" ".join(words).lower(), " ".join(words)).split("/")):
        factor = _factor(part.split())
        if factor is None:
            return None
        name, power = factor
        powers[name] = powers.get(name, 0) + (power if index == 0 else -power)
    return tuple(sorted(powers.items()))


def _factor(words: list[str]) -> tuple[str, int] | None:
    power = _POWERS.get(words[0].lower(), 1) if len(words) == 2 else 1
    if len(words) != 1 + (power > 1):
        return None
    word, _, exponent = words[-1].partition("^")
    name = _NAMES.get(word) or _NAMES.get(word.lower() if len(word) > 2 else "")
    if name is None or (exponent and (power > 1 or exponent not in ("2", "3"))):
        return None
    return name, int(exponent or power)
