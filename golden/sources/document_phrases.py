"""Hand-written phrases of the class ``long_context``: five kinds of working document. Every name is invented.

``{braces}`` are filled in by ``long_context``: people, places, parts and numbers in the ``lines``, the fact in the
``needles``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Needle:
    """A fact hidden in a document: the line that states it, the question, and the answer with its mark.

    ``{subject}`` is unlike in every needle of a document, ``{value}`` is the fact."""

    line: str
    question: str
    answer: str
    value: str
    subjects: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of document. A line of it is ``stamp`` and one of the ``lines`` or a needle."""

    slug: str
    title: str
    stamp: str
    lines: tuple[str, ...]
    needles: tuple[Needle, ...]


PEOPLE = (
    "Ines Korbel",
    "Tobias Wend",
    "Marta Olsza",
    "Henrik Daal",
    "Priya Sandoval",
    "Jonas Felk",
    "Amara Yoste",
    "Luca Brandvik",
    "Nadia Perrow",
    "Oskar Tamm",
    "Selma Quist",
    "Ruben Achterberg",
    "Yara Molnes",
    "Piet Garrow",
)
PLACES = (
    "Hall 2",
    "the north annex",
    "bay 14",
    "the lower gallery",
    "dock C",
    "the boiler room",
    "line 3",
    "the cold store",
    "the east yard",
    "workshop B",
    "the pump house",
    "platform 6",
    "the loading ramp",
    "cabinet 9",
)
PARTS = (
    "drive belt",
    "coupling",
    "pressure gauge",
    "filter cartridge",
    "relay board",
    "guide rail",
    "door seal",
    "level sensor",
    "gear motor",
    "junction box",
    "cooling fan",
    "inlet valve",
    "limit switch",
    "bearing block",
)
GOODS = (
    "ceramic insulators",
    "seed potatoes",
    "printed manuals",
    "glass jars",
    "wool blankets",
    "copper wire",
    "floor tiles",
    "bicycle frames",
    "paper rolls",
    "garden hoses",
    "spice tins",
    "window frames",
)

MAINTENANCE = Kind(
    slug="maintenance",
    title="Maintenance log of the Velden Ridge water works",
    stamp="[day {day} {clock}]",
    lines=(
        "{person} inspected the {part} in {place}; no play, no leak, surface temperature {small} degrees.",
        "The {part} in {place} ran noisy for {small} minutes after the start and then settled; {person} will watch it.",
        "Replaced the {part} in {place} with one from the shelf. Work took {small} minutes, test run without findings.",
        "Alarm from {place} at the shift change was acknowledged by {person}. Cause: loose plug at the {part}.",
        "{person} cleaned the {part} and noted {small} hours of service left before the next check.",
        "Vibration reading at the {part} in {place} is {small} units, last week it was a little lower. No action.",
        "Power to {place} was off for {small} minutes while {person} tightened the terminals of the {part}.",
        "Night round by {person}: {place} dry, lights in order, the {part} warm but within its limit.",
        "Ordered a spare {part}; the supplier promises delivery within {small} days. {person} informed the foreman.",
        "Two bolts at the {part} were missing in {place}. {person} fitted new ones and painted them with marker.",
        "Grease was refilled at the {part}, about {small} grams. The old grease looked grey and was disposed of.",
        "{person} asked the planners to move the overhaul of {place} by {small} days, as the {part} is still sound.",
    ),
    needles=(
        Needle(
            line="The access code of the {subject} was changed to {value}.",
            question="What is the access code of the {subject}?",
            answer="The access code of the {subject} is [[{value}]].",
            value="{letters}-{four}",
            subjects=("sluice gate", "chlorine room", "transformer cage", "reservoir hatch"),
        ),
        Needle(
            line="The serial number of the new {subject} is {value}; it is written on the yellow plate.",
            question="What is the serial number of the new {subject}?",
            answer="The serial number of the new {subject} is [[{value}]].",
            value="{letters}{four}",
            subjects=("booster pump", "dosing unit", "flow meter", "backup generator"),
        ),
    ),
)

SHIPMENTS = Kind(
    slug="shipments",
    title="Shipment records of the Castor Bay freight office",
    stamp="{clock} |",
    lines=(
        "{number} cartons of {goods} arrived at {place}; {person} signed for them after a count.",
        "The truck with {goods} waited {small} minutes at {place} because the ramp was taken.",
        "{person} rejected {small} cartons of {goods}: wet corners, labels not readable. Photos are in the folder.",
        "Customs released the {goods} without an inspection. {person} moved them to {place}.",
        "A consignment of {goods} left {place} for the coast, {number} cartons on {small} pallets.",
        "The consignee asked for delivery in the afternoon; {person} swapped the slot with the {goods}.",
        "Weight of the {goods} checked on the floor scale at {place}: {number} kilograms, in line with the papers.",
        "{person} found {small} empty pallets in {place} and sent them back with the driver.",
        "Papers for the {goods} came without a stamp. {person} called the sender, a new copy is on the way.",
        "Forklift at {place} was charged for {small} minutes; {goods} had to be moved by hand until then.",
        "The {goods} go on hold in {place} until the invoice is clear. {person} put a red card on them.",
        "Seal of the trailer with {goods} intact, temperature at the door {small} degrees, unloaded at {place}.",
    ),
    needles=(
        Needle(
            line="The container number of the {subject} shipment is {value}.",
            question="What is the container number of the {subject} shipment?",
            answer="The container number of the {subject} shipment is [[{value}]].",
            value="{letters}-{four}",
            subjects=("Norwick", "Halbrook", "Sandmere", "Tarrowby"),
        ),
        Needle(
            line="The freight for the {subject} order comes to {value} euros, payable on arrival.",
            question="How much is the freight for the {subject} order?",
            answer="The freight for the {subject} order comes to [[{value}]] euros.",
            value="{four}",
            subjects=("Elmstead", "Corvane", "Pellham", "Ostrava Hill"),
        ),
    ),
)

MINUTES = Kind(
    slug="minutes",
    title="Minutes of the steering meetings of the Brackwater library project",
    stamp="{item}.",
    lines=(
        "{person} reported on {place}: the painters are done, the floor needs {small} more days.",
        "The board discussed the lighting in {place} at length and postponed the matter to the next meeting.",
        "{person} presented two offers for the {part}; the cheaper one has a delivery time of {small} weeks.",
        "It was agreed that {person} writes to the neighbours about the noise near {place}.",
        "{person} asked whether the {part} is covered by the warranty. Nobody present could answer this.",
        "The budget line for {place} has {small} percent left. {person} sees no risk for this quarter.",
        "{person} thanked the volunteers who packed {number} boxes in {place} over the weekend.",
        "A visitor count in {place} gave {number} people on a rainy day, more than {person} had expected.",
        "The minutes of the last meeting were approved with one change about {place}, moved by {person}.",
        "{person} will collect the keys of {place} and hand them over before the {part} is fitted.",
        "Training for the new staff takes {small} hours and is held in {place}; {person} sends the invitations.",
        "{person} withdrew the request for a second {part}, as the first one works again.",
    ),
    needles=(
        Needle(
            line="The board approved a budget of {value} euros for the {subject}.",
            question="What budget did the board approve for the {subject}?",
            answer="The board approved a budget of [[{value}]] euros for the {subject}.",
            value="{four}",
            subjects=("reading garden", "map room", "children's corner", "sound archive"),
        ),
        Needle(
            line="The contractor for the {subject} is {value}, elected without votes against.",
            question="Who is the contractor for the {subject}?",
            answer="The contractor for the {subject} is [[{value}]].",
            value="{firm}",
            subjects=("roof repair", "lift shaft", "book conveyor", "front steps"),
        ),
    ),
)

AUDIT = Kind(
    slug="audit",
    title="Inventory audit of the Osterlund tool store",
    stamp="- entry {item}:",
    lines=(
        "{number} pieces of {part} counted in {place}, the list says the same.",
        "{person} counted the {part} shelf in {place} twice; {small} pieces lie in the wrong box.",
        "The card of the {part} in {place} is not signed. {person} remembers taking {small} pieces.",
        "{small} pieces of {part} are dusty but usable; {person} moved them to the front of {place}.",
        "A box in {place} holds {part} and {goods} mixed. {person} sorts it until the end of the week.",
        "Difference of {small} pieces for {part} explained by a late booking; corrected by {person}.",
        "The shelf in {place} leans to one side. {person} emptied it and reported the matter.",
        "{person} found {goods} without a label in {place} and set them aside.",
        "{part}: {number} pieces by the list, {number} by the count a year ago, slow mover, keep {small}.",
        "Scrap bin of {place} emptied, {number} kilograms, among it one broken {part}.",
        "{person} confirmed that the {goods} in {place} belong to the canteen and are not part of the audit.",
        "The lock of {place} is stiff; {person} needed {small} minutes to open it. Locksmith called.",
    ),
    needles=(
        Needle(
            line="The {subject} is stored under bin code {value}.",
            question="Under which bin code is the {subject} stored?",
            answer="The {subject} is stored under bin code [[{value}]].",
            value="{letters}-{four}",
            subjects=("torque wrench", "thread cutter", "laser level", "pipe bender"),
        ),
        Needle(
            line="The replacement value of the {subject} was set at {value} euros.",
            question="At what amount was the replacement value of the {subject} set?",
            answer="The replacement value of the {subject} was set at [[{value}]] euros.",
            value="{four}",
            subjects=("plasma cutter", "bench lathe", "gantry crane", "spray booth"),
        ),
    ),
)

SITES = Kind(
    slug="sites",
    title="Site reports of the Lumenra sleep study",
    stamp="Visit {item} -",
    lines=(
        "{person} checked {small} consent forms in {place}; all of them are signed and dated.",
        "Room temperature of {place} was {small} degrees during the night, the logger shows no gap.",
        "A participant asked to move the visit by {small} days; {person} found a slot and informed the sponsor.",
        "The {part} of the sleep monitor was exchanged by {person} before the evening session.",
        "{person} reported a mild headache of one participant, gone after {small} minutes, not related.",
        "Diary pages of {number} nights were scanned in {place} and filed by {person}.",
        "The freezer in {place} was opened for {small} minutes to take stock; samples stayed frozen.",
        "{person} repeated the training on the questionnaire for {small} new members of the staff.",
        "Two queries of the data manager about {place} are answered, one is still open with {person}.",
        "The monitor visited {place} and praised the order in the files; {person} took the notes.",
        "A recording of {number} minutes was lost when the {part} failed. {person} repeated it the night after.",
        "{person} counted the capsules in {place}: {number} left, as expected from the plan.",
    ),
    needles=(
        Needle(
            line="The randomisation code of the {subject} group is {value}.",
            question="What is the randomisation code of the {subject} group?",
            answer="The randomisation code of the {subject} group is [[{value}]].",
            value="{letters}-{four}",
            subjects=("amber", "violet", "indigo", "scarlet"),
        ),
        Needle(
            line="The principal investigator at the {subject} site is Dr. {value}.",
            question="Who is the principal investigator at the {subject} site?",
            answer="The principal investigator at the {subject} site is Dr. [[{value}]].",
            value="{surname}",
            subjects=("Grenholm", "Castleway", "Pinemoor", "Ravenscar"),
        ),
    ),
)

KINDS = (MAINTENANCE, SHIPMENTS, MINUTES, AUDIT, SITES)
FIRMS = ("Tolvane and Sons", "Brimmel Works", "Kestrow Builders", "Ardley Frames", "Quorn Masonry", "Haskett Lifts")
SURNAMES = ("Oberwyn", "Castellane", "Threlkeld", "Marchbanks", "Vandermolen", "Iskandar", "Petrowna", "Ellingboe")
