"""Several models that share people, and somebody who asks for one deletion after the other over HTTP."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from lethe import Client
from tests import samples
from tests.faults.population import Population, draw

MOST_AT_ONCE = 20


def shared_populations(models: int, people: int, seed: int) -> list[Population]:
    """Each person has a row in one to three of the models, so that some deletions concern several."""
    chance = random.Random(seed)
    members: list[list[int]] = [[] for _ in range(models)]
    for person in range(people):
        for model in chance.sample(range(models), chance.randint(1, 3)):
            members[model].append(person)
    return [draw(chosen, 1, seed + number) for number, chosen in enumerate(members)]


class Asking(threading.Thread):
    """Asks to forget these people, each by a deletion of their own, singly or in bulk, spread over some seconds."""

    def __init__(self, client: Client, people: Sequence[int], seconds: float, seed: int) -> None:
        super().__init__(name="asking")
        self.acknowledged: dict[uuid.UUID, tuple[int, ...]] = {}
        self._client = client
        self._people = people
        self._seconds = seconds
        self._chance = random.Random(seed)
        self._failure: Exception | None = None
        self._stop_early = threading.Event()

    def __enter__(self) -> Asking:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_early.set()
        self.join()

    def finish(self) -> Mapping[uuid.UUID, tuple[int, ...]]:
        """Wait until all are acknowledged; whom each deletion names."""
        self.join()
        if self._failure is not None:
            raise self._failure
        return self.acknowledged

    def run(self) -> None:
        started, done = time.monotonic(), 0
        try:
            while done < len(self._people) and not self._stop_early.is_set():
                size = self._chance.randint(2, MOST_AT_ONCE) if self._chance.random() < 0.2 else 1
                people = self._people[done : done + size]
                for person, deletion_id in zip(people, self._ask(people), strict=True):
                    self.acknowledged[deletion_id] = (person,)
                done += len(people)
                due = started + self._seconds * done / len(self._people)
                self._stop_early.wait(max(0.0, due - time.monotonic()))
        except Exception as error:  # told in the thread of the test
            self._failure = error

    def _ask(self, people: Sequence[int]) -> list[uuid.UUID]:
        if len(people) == 1:
            return [uuid.UUID(self._client.delete([samples.person(people[0])])["id"])]
        answers: list[dict[str, Any]] = self._client.delete_many(
            [{"subjects": [samples.person(person)]} for person in people]
        )
        assert {answer["status"] for answer in answers} == {201}, answers[:1]
        return [uuid.UUID(answer["id"]) for answer in answers]
