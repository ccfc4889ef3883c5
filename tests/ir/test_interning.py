"""Equal things are one object while anybody holds it, whatever threads and collections of garbage do."""

from __future__ import annotations

import gc
import threading

from cleave.ir.interning import Interned


class Thing:
    """An object that can be held weakly."""


def test_the_first_is_kept() -> None:
    table: Interned[Thing] = Interned()
    first, second = Thing(), Thing()
    assert table.get("a") is None
    assert table.add("a", first) is first and table.add("a", second) is first
    assert table.get("a") is first and table.known(["b", "a"]) == [None, first]


def test_what_nobody_holds_is_gone_and_makes_room() -> None:
    table: Interned[Thing] = Interned()
    table.add("a", Thing())
    assert table.get("a") is None and table.known(["a"]) == [None]
    later = Thing()
    assert table.add("a", later) is later
    table.add("b", Thing())  # takes out what died: the first "a", not the one that has its key now
    assert table.get("a") is later
    assert table.add_all(["c"], [Thing()])
    assert list(table._kept) == ["a", "c"]


def test_many_are_added_together_or_not_at_all() -> None:
    table: Interned[Thing] = Interned()
    things = [Thing() for _ in range(3)]
    assert table.add_all(["a", "b", "c"], things)
    assert table.known(["c", "a"]) == [things[2], things[0]]
    other = Thing()
    assert not table.add_all(["d", "b"], [other, Thing()])
    assert table.get("d") is None and table.get("b") is things[1]
    del things[1]
    assert table.add_all(["d", "b"], [other, Thing()])
    assert table.get("d") is other and table.get("a") is things[0]


def test_what_dies_in_a_cycle_is_gone_after_a_collection() -> None:
    table: Interned[Thing] = Interned()
    thing = table.add("a", Thing())
    thing.own = thing  # pyright: ignore[reportAttributeAccessIssue]
    del thing
    gc.collect()
    assert table.get("a") is None


def test_threads_that_add_at_once_get_one_object() -> None:
    table: Interned[Thing] = Interned()
    start = threading.Barrier(4)
    found: list[list[Thing]] = [[] for _ in range(4)]

    def work(mine: list[Thing]) -> None:
        start.wait()
        for number in range(2000):
            mine.append(table.add(str(number), Thing()))
            table.add(f"short-lived {number % 7}", Thing())

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len({id(thing) for thing in same}) == 1 for same in zip(*found, strict=True))
