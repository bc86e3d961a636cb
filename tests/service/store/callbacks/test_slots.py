from __future__ import annotations

from service.store.callbacks.slots import Slots


def slots(**in_flight: int) -> Slots:
    """Slots with attempts in flight, by caller, each on a host of its own."""
    shared = Slots(total=10, per_caller=5, per_host=3, reserved=2)
    for caller, count in in_flight.items():
        for number in range(count):
            shared.take(caller, f"{number}.example")
    return shared


def test_a_caller_has_a_bound() -> None:
    assert slots().free_for("a") == 5
    assert slots(a=3).free_for("a") == 2
    assert slots(a=5).free_for("a") == 0


def test_a_newcomer_always_finds_a_slot_until_all_are_taken() -> None:
    busy = slots(a=5, b=3)
    assert (busy.free_for("b"), busy.free_for("c")) == (0, 1)
    assert slots(a=5, b=3, c=1).free_for("d") == 1
    assert slots(a=5, b=3, c=1, d=1).free_for("e") == 0


def test_a_host_has_a_bound_for_each_caller() -> None:
    shared = slots()
    for _ in range(3):
        shared.take("a", "slow.example")
    assert not shared.has_room_on("a", "slow.example")
    assert shared.has_room_on("b", "slow.example")
    assert shared.full_hosts("a") == ["slow.example"]
    shared.release("a", "slow.example")
    assert shared.has_room_on("a", "slow.example")


def test_the_caller_with_the_fewest_attempts_comes_first() -> None:
    assert slots(a=3, b=1).in_turn(["a", "b", "c"]) == ["c", "b", "a"]


def test_a_copy_is_independent_and_nothing_remains_of_ended_attempts() -> None:
    shared = slots(a=1)
    shared.copy().take("a", "other.example")
    shared.release("a", "0.example")
    assert shared.in_flight == {}
