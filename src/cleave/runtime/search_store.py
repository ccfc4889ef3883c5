"""Searches that are kept on disk: a program is searched once, whatever process asks, and at whatever sizes.

An entry is stored under the program in canonical form (operations, names, layouts; of the numbers that sizes
are fixed to, only a 1 in a union), the settings of the search, and the source of `ir` and `algebra`. What is
found holds for every size, so a program is searched without its fixed sizes, and gets them back afterwards.
Entries are those of `cache`: whole or absent, safe with many processes and with a kill at any moment. The
last few are kept in memory as well.
"""

from __future__ import annotations

import functools
import json
import marshal
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from cleave.algebra import search as searching
from cleave.algebra.search import Found
from cleave.ir.dims import Dim, Extent, Union
from cleave.ir.later import Later
from cleave.ir.packed import OWN, changed, classes_of, pack, unpack
from cleave.ir.program import Program
from cleave.knobs import knobs
from cleave.runtime import cache
from cleave.runtime.collection import without_collection

CLASSES = classes_of(searching, besides=OWN)
SUFFIX = ".found"
FORM = "2"
"""How an entry is laid out here: goes up when `stored` writes another one."""
SOURCES = ("ir", "algebra")
"""The packages that what is found depends on."""

MOST_KEPT = 64
_kept: OrderedDict[tuple[Path, str], Found] = OrderedDict()
_lock = threading.Lock()


def search(
    program: Program, *, split: bool = True, reassociate: bool = True, numerics: str = "stable"
) -> Found:
    """What `cleave.algebra.search.search` finds for a program, from memory or disk if it was searched before.
    Writes nothing but the entry; errors of the search come through and are not kept."""
    free = without_sizes(program)
    key = key_of(free, split=split, reassociate=reassociate, numerics=numerics)
    place = (knobs().cache_dir, key)
    with _lock:
        found = _kept.get(place)
        if found is not None:
            _kept.move_to_end(place)
    if found is None:
        found = _fetched(free, key, split=split, reassociate=reassociate, numerics=numerics)
        with _lock:
            _kept[place] = found
            if len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)
    return with_sizes(found, program)


def forget() -> None:
    """Drop what is kept in memory; entries on disk stay."""
    with _lock:
        _kept.clear()


def key_of(free: Program, *, split: bool, reassociate: bool, numerics: str) -> str:
    """The key of an entry; `free` is without fixed sizes."""
    settings = {"split": split, "reassociate": reassociate, "numerics": numerics}
    parts = {"program": identity(free), "settings": json.dumps(settings, sort_keys=True), "form": FORM}
    return cache.key_of(parts, sources=SOURCES)


def identity(program: Program) -> str:
    """A program in canonical form: equal for programs that print the same text. Digests stand for nodes."""
    nodes = program.nodes
    text = {
        "name": program.name,
        "inputs": [node.digest for node in program.inputs],
        "outputs": [(o.name, o.node.digest, o.layout) for o in program.outputs],
        "sizes": [(str(atom), str(value)) for atom, value in program.sizes],
        "names": [program.names.get(node, "") for node in nodes],
    }
    return json.dumps(text)


def without_sizes(program: Program) -> Program:
    """The program with every size dynamic that is not made of others, and without the user's lines. A part
    of a union that has one element keeps its size: an appended column is computed without a reduction."""
    parts = {part for node in program.nodes for i in (*node.axes, *node.bound) for part in _parts(i.dim)}
    made = tuple(
        (atom, value)
        for atom, value in program.sizes
        if isinstance(value, Extent) or (value == 1 and atom in parts)
    )
    return replace(program, sizes=made, lines={})


def _parts(dim: Dim) -> tuple[Dim, ...]:
    return dim.parts if isinstance(dim, Union) else ()


def with_sizes(found: Found, program: Program) -> Found:
    """What was found for a program without sizes, for the program itself."""
    if not found.candidates:
        return found
    candidates = found.candidates
    programs = changed([c.program for c in candidates], sizes=[program.sizes] * len(candidates))
    programs[0] = program
    written = [_sized(c.written_out, program) for c in candidates]
    return replace(found, candidates=tuple(changed(candidates, program=programs, written_out=written)))


def _sized(written: Program | Later[Program] | None, program: Program) -> Later[Program] | None:
    """A program with the sizes of another one, made when it is read."""
    if written is None:
        return None

    def make() -> Program:
        form = written() if isinstance(written, Later) else written
        return replace(form, sizes=program.sizes)

    return Later(make)


def _fetched(free: Program, key: str, *, split: bool, reassociate: bool, numerics: str) -> Found:
    made: list[Found] = []

    def make(path: Path) -> None:
        found = searching.search(free, split=split, reassociate=reassociate, numerics=numerics)
        made.append(found)
        path.write_bytes(stored(found))

    path = cache.fetch(key, SUFFIX, make)
    return made[0] if made else read_back(path.read_bytes())


def stored(found: Found) -> bytes:
    """An entry: what was found without forms written out over parts, and these by themselves. They are two
    fifths of all nodes, and only printing a candidate reads them."""
    forms = tuple(candidate.split_form for candidate in found.candidates)
    slim = tuple(changed(found.candidates, written_out=[None] * len(forms)))
    return marshal.dumps((pack(replace(found, candidates=slim), *CLASSES), pack(forms)))


def read_back(data: bytes) -> Found:
    """What `stored` was given; its forms over parts are unpacked when the first of them is read."""
    first, second = marshal.loads(data)
    with without_collection():
        found: Found = unpack(first, *CLASSES)
    forms: Later[tuple[Program, ...]] = Later(functools.partial(unpack, second))
    written = [
        Later(lambda number=number: forms()[number]) if candidate.splits else None
        for number, candidate in enumerate(found.candidates)
    ]
    return replace(found, candidates=tuple(changed(found.candidates, written_out=written)))
