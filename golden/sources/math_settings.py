"""Hand-written wording of the class ``math_chain``: the settings of its agents and the rules that they share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One invented place with a running number. ``add`` and ``take`` are the verbs of its two directions; ``double`` is
    the instruction that multiplies the number by two; ``quantities`` are the named constants, ``units`` their unit."""

    slug: str
    place: str
    units: str
    add: str
    take: str
    double: str
    quantities: tuple[str, ...]


RULES = """You keep a running number for an operations team. Each message is one step. Answer each step with \
exactly one line:
Step N: LEFT OPERATOR OPERAND = RESULT
LEFT is the RESULT of the step before it. OPERAND is a number from the message, from the quantity list below, \
or from an earlier step.

Example with the number 614 and the quantity tray = 25:
User: Step 1: add one tray.
Reply: Step 1: 614 + 25 = 639
User: Step 2: take 7.
Reply: Step 2: 639 - 7 = 632
User: Step 3: add the operand of step 1.
Reply: Step 3: 632 + 25 = 657"""

CHAIN_RULES = """You keep the running number of an operations team. You get the opening number and all steps at once. \
Answer with one line a step:
Step N: LEFT OPERATOR OPERAND = RESULT
LEFT is the result of the step before. OPERAND is the number in the step, or the quantity of that name in the list. \
The last line is Answer: and the last result."""

SETTINGS = (
    Setting(
        slug="depot",
        place="the stock of roof tiles at Marrow Lane depot",
        units="tiles",
        add="receive",
        take="ship",
        double="the stock doubles",
        quantities=("crate", "pallet", "half rack", "trial box", "bundle"),
    ),
    Setting(
        slug="cistern",
        place="the level of the cistern at Hollin Weir",
        units="litres",
        add="pump in",
        take="drain",
        double="the level doubles",
        quantities=("barrel", "trough", "canister", "hose run", "night ration"),
    ),
    Setting(
        slug="ledger",
        place="the petty cash ledger of the Tolland workshop",
        units="euros",
        add="book in",
        take="pay out",
        double="the balance doubles",
        quantities=("courier fee", "van hire", "cleaning bill", "day ticket", "storage charge"),
    ),
    Setting(
        slug="nursery",
        place="the seedlings on the benches of Quillan nursery",
        units="seedlings",
        add="plant",
        take="sell",
        double="the number of seedlings doubles",
        quantities=("tray", "flat", "trolley", "sample row", "market table"),
    ),
    Setting(
        slug="ferry",
        place="the places booked on the evening ferry to Osmund Island",
        units="places",
        add="book",
        take="cancel",
        double="the bookings double",
        quantities=("coach party", "school group", "family cabin", "cargo deck", "crew block"),
    ),
    Setting(
        slug="archive",
        place="the boxes on the shelves of the Penrick archive",
        units="boxes",
        add="shelve",
        take="release",
        double="the number of boxes doubles",
        quantities=("bay", "trolley load", "lorry load", "audit sample", "deed series"),
    ),
    Setting(
        slug="credits",
        place="the compute credits of the Larch render team",
        units="credits",
        add="grant",
        take="spend",
        double="the credits double",
        quantities=("preview pass", "final pass", "nightly run", "texture bake", "audit job"),
    ),
)
