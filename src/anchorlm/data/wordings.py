"""Wordings of facts and cues for training on recall: many sentences, over several kinds of keys and values.

None of them is a held-out wording of `needles.py`, and no key or word value here is one of its keys or words, so that
what evaluation asks for is never a sentence that was trained on. Numbers have 2 to 6 or 8 digits, never the 7 there.
`HELD_OUT` are those of `needles.py`, for evaluation alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anchorlm.data.needles import HELD_OUT_TEMPLATES, KEYS

Draw = Callable[[np.random.Generator], str]


@dataclass(frozen=True)
class Wording:
    """`fact` states {value} of {key}; each cue ends where the value must follow. key, value: kinds of `DRAWS`."""

    key: str
    value: str
    fact: str
    cues: tuple[str, ...]


def _wording(key: str, value: str, fact: str, *cues: str) -> Wording:
    return Wording(key, value, fact, cues)


WORDINGS = (
    _wording("city", "number", "The mayor of {key} counts {value} bridges in the town.",
             "The number of bridges counted by the mayor of {key} is", "How many bridges are in {key}? Answer:"),
    _wording("city", "date", "The great bell of {key} was cast on {value}.",
             "The day on which the great bell of {key} was cast is", "The great bell of {key} was cast on"),
    _wording("city", "colour", "All the trams of {key} are painted {value}.",
             "The trams of {key} are all painted", "Q: What colour are the trams of {key}?\nA:"),
    _wording("city", "name", "In {key} the oldest baker is called {value}.",
             "The oldest baker in {key} is called", "In {key} the oldest baker is called"),
    _wording("city", "code", "Trains from {key} carry the mark {value}.",
             "The mark carried by trains from {key} is", "Trains from {key} carry the mark"),
    _wording("city", "word", "The password at the gate of {key} is {value}.",
             "At the gate of {key} the password is", "The password at the gate of {key} is"),
    _wording("city", "place", "Every caravan that leaves {key} heads for {value}.",
             "A caravan that leaves {key} heads for", "Where do caravans from {key} go? They head for"),
    _wording("city", "number", "The lighthouse near {key} has {value} steps.",
             "The steps of the lighthouse near {key} number", "Near {key} the lighthouse has this many steps:"),
    _wording("city", "number", "The daily bus to {key} is line {value}.",
             "The line of the daily bus to {key} is", "To get to {key}, take bus line"),
    _wording("person", "number", "At the gym {key} uses locker {value}.",
             "The locker that {key} uses at the gym is", "At the gym {key} uses locker"),
    _wording("person", "date", "{key} was born on {value}.",
             "The birthday of {key} is", "Q: When was {key} born?\nA:"),
    _wording("person", "colour", "In winter {key} always wears {value} gloves.",
             "The colour of the gloves that {key} wears in winter is", "What colour are the gloves of {key}? They are"),
    _wording("person", "place", "Last spring {key} moved to {value}.",
             "Last spring {key} moved to", "The new home of {key} since last spring is in"),
    _wording("person", "name", "The younger sister of {key} is {value}.",
             "{key} has a younger sister, whose name is", "The younger sister of {key} is"),
    _wording("person", "code", "{key} drives a van with the plate {value}.",
             "The plate on the van of {key} reads", "{key} drives a van with the plate"),
    _wording("person", "word", "{key} named the puppy {value}.",
             "The puppy of {key} is named", "{key} named the puppy"),
    _wording("person", "number", "In the final {key} scored {value} points.",
             "The points that {key} scored in the final came to", "In the final {key} scored"),
    _wording("person", "name", "{key} shares an office with {value}.",
             "The colleague in the office of {key} is", "{key} shares an office with"),
    _wording("person", "code", "The boarding pass of {key} says {value}.",
             "On the boarding pass of {key} one reads", "The boarding pass of {key} says"),
    _wording("person", "word", "Whenever asked for a rhyme, {key} answers with {value}.",
             "Asked for a rhyme, {key} answers with", "The rhyme that {key} always offers is"),
    _wording("object", "place", "You will find {key} in {value}.",
             "The place where you will find {key} is", "Where is {key}? It is in"),
    _wording("object", "colour", "Somebody has painted {key} {value}.",
             "The paint on {key} is", "Q: What colour is {key}?\nA:"),
    _wording("object", "number", "At the auction {key} went for {value} crowns.",
             "The crowns paid at the auction for {key} were", "At the auction {key} went for"),
    _wording("object", "name", "The present owner of {key} is {value}.",
             "Nowadays {key} belongs to", "The present owner of {key} is"),
    _wording("object", "date", "The guarantee on {key} ends on {value}.",
             "The last day of the guarantee on {key} is", "The guarantee on {key} ends on"),
    _wording("object", "code", "The serial number of {key} is {value}.",
             "Stamped under {key} is the serial number", "The serial number of {key} is"),
    _wording("object", "word", "The children have nicknamed {key} {value}.",
             "The nickname of {key} among the children is", "The children have nicknamed {key}"),
    _wording("object", "place", "A sailor once brought {key} from {value}.",
             "Originally {key} comes from", "A sailor once brought {key} from"),
    _wording("project", "name", "The person in charge of {key} is {value}.",
             "{key} is run by", "Who is in charge of {key}? It is"),
    _wording("project", "number", "The budget of {key} is {value} dollars.",
             "In dollars {key} has a budget of", "The budget of {key} is"),
    _wording("project", "date", "{key} must be finished by {value}.",
             "The deadline of {key} is", "{key} must be finished by"),
    _wording("project", "code", "Letters about {key} begin with the reference {value}.",
             "The reference on letters about {key} is", "Letters about {key} begin with the reference"),
    _wording("project", "word", "Insiders talk of {key} as {value}.",
             "Among insiders {key} goes by", "Insiders talk of {key} as"),
    _wording("project", "place", "The crew behind {key} meets in {value}.",
             "The meetings of the crew behind {key} are held in", "The crew behind {key} meets in"),
    _wording("project", "colour", "Folders that belong to {key} are {value}.",
             "The colour of the folders that belong to {key} is", "Folders that belong to {key} are"),
    _wording("project", "number", "The room reserved for {key} is {value}.",
             "{key} has the reserved room", "The room reserved for {key} is"),
    _wording("project", "code", "The version of {key} in use today is {value}.",
             "Today people use {key} in version", "The version of {key} in use today is"),
    _wording("project", "date", "{key} was first announced on {value}.",
             "The announcement of {key} was made on", "Q: When was {key} first announced?\nA:"),
)  # fmt: skip

HELD_OUT = tuple(
    _wording("needle key", "needle number", template.fact, template.cue) for template in HELD_OUT_TEMPLATES
)


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CITIES = _list(
    "Aarhus Antwerp Bergen Bern Bilbao Bremen Bristol Calgary Cordoba Dakar Dresden Durban Florence Ghent Glasgow "
    "Granada Graz Hanoi Izmir Krakow Leipzig Liverpool Lyon Malmo Marseille Nagoya Nantes Osaka Palermo Porto Quito "
    "Rotterdam Salzburg Santiago Seville Tallinn Tampere Turin Utrecht Valencia Verona Vilnius Windhoek Zagreb Zurich"
)
FIRST = _list(
    "Ada Alma Anton Bruno Clara Daniel Elena Emil Felix Freya Greta Hugo Ida Ivan Jonas Julia Karim Laura Leo Lina "
    "Marta Mila Nadia Nils Olga Omar Oscar Petra Rosa Samir Sara Selma Simon Sofie Stella Tariq Theo Vera Viktor Yusuf"
)
LAST = _list(
    "Abbott Bauer Becker Brandt Cole Costa Dalton Dietrich Ekman Farrow Fischer Garcia Haas Hoffman Holm Ito Jansen "
    "Keller Kovac Larsen Lindgren Marin Mercer Moreau Novak Okafor Olsen Pavlov Quinn Reyes Rossi Sato Sharma Silva "
    "Tanaka Torres Varga Weber Young Zeller"
)
THINGS = _list(
    "kettle clock chest globe piano umbrella suitcase telescope bicycle teapot chair wardrobe trumpet compass vase "
    "typewriter sledge drum camera statue"
)
LOOKS = _list("brass wooden broken heavy tiny ancient dusty polished striped folding")
TITLES = _list(
    "Halyard Juniper Meteor Nimbus Osprey Quartz Tundra Vesper Zephyr Cobalt Falcon Glacier Harvest Lagoon Mosaic Onyx "
    "Pioneer Sundial Topaz Willow Aurora Bramble Cascade Ember Foxglove Granite Heron Keystone Larkspur Monsoon"
)
WORDS = _list(
    "acorn almond badger bamboo barley biscuit blossom bonnet bucket cactus canvas cedar clover comet coral cradle "
    "dolphin falcon fiddle flannel goblet hazel hornet jasmine kernel kitten locket magnet mango maple mitten muffin "
    "nutmeg olive onion parrot pebble pigeon plum pretzel puddle raisin rocket sandal satchel sparrow sponge squirrel "
    "tadpole thimble trumpet tulip turnip waffle walrus wagon willow yarn zebra zipper"
)
COLOURS = _list("red blue green yellow orange purple pink brown black white grey turquoise crimson beige golden")
SHADES = ("", "", "", "dark ", "pale ", "bright ")
ROOMS = (
    "the cellar", "the attic", "the north tower", "the kitchen", "the old stable", "the boathouse", "the chapel",
    "the greenhouse", "the west wing", "the music room", "the courtyard", "the laundry", "the market hall",
)  # fmt: skip
MONTHS = _list("January February March April May June July August September October November December")
DIGITS = (2, 3, 4, 5, 6, 8)


def _pick(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[int(rng.integers(len(words)))]


def _number(rng: np.random.Generator) -> str:
    count = DIGITS[int(rng.integers(len(DIGITS)))]
    return str(int(rng.integers(10 ** (count - 1), 10**count)))


def _date(rng: np.random.Generator) -> str:
    day, month, year = int(rng.integers(1, 29)), int(rng.integers(12)), int(rng.integers(1750, 2030))
    forms = (f"{day} {MONTHS[month]} {year}", f"{MONTHS[month]} {day}, {year}", f"{year}-{month + 1:02}-{day:02}")
    return _pick(rng, forms)


def _code(rng: np.random.Generator) -> str:
    letters = "".join(_pick(rng, tuple("ABCDEFGHJKLMNPQRSTUVWXYZ")) for _ in range(int(rng.integers(1, 4))))
    digits = str(int(rng.integers(10, 10_000)))
    return _pick(rng, (f"{letters}-{digits}", f"{digits}-{letters}", f"{letters}{digits}"))


DRAWS: dict[str, Draw] = {
    "city": lambda rng: _pick(rng, CITIES),
    "person": lambda rng: f"{_pick(rng, FIRST)} {_pick(rng, LAST)}",
    "object": lambda rng: f"the {_pick(rng, LOOKS)} {_pick(rng, THINGS)}",
    "project": lambda rng: f"Project {_pick(rng, TITLES)}",
    "number": _number,
    "word": lambda rng: _pick(rng, WORDS),
    "name": lambda rng: f"{_pick(rng, FIRST)} {_pick(rng, LAST)}",
    "date": _date,
    "code": _code,
    "colour": lambda rng: _pick(rng, SHADES) + _pick(rng, COLOURS),
    "place": lambda rng: _pick(rng, ROOMS + CITIES),
    "needle key": lambda rng: _pick(rng, KEYS),
    "needle number": lambda rng: str(int(rng.integers(1_000_000, 10_000_000))),
}


def fingerprint(sentences: tuple[Wording, ...] = WORDINGS) -> str:
    """16 hex digits that change with any wording, key or value, so that a run cannot go on with other ones."""
    lists = (sentences, CITIES, FIRST, LAST, THINGS, LOOKS, TITLES, WORDS, COLOURS, SHADES, ROOMS, MONTHS, DIGITS)
    return hashlib.sha256(repr(lists).encode()).hexdigest()[:16]
