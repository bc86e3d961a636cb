"""Load for the fault tests: models that share people, and a thread that requests deletions over HTTP."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from lethe import Client
from tests import samples
from tests.faults.population import Population, draw_population

MAX_BULK = 20


def shared_populations(models: int, people: int, seed: int) -> list[Population]:
    """Return populations in which each person has a row in one to three models, so that deletions span models."""
    rng = random.Random(seed)
    members: list[list[int]] = [[] for _ in range(models)]
    for person in range(people):
        for model in rng.sample(range(models), rng.randint(1, 3)):
            members[model].append(person)
    return [draw_population(owners, 1, seed + number) for number, owners in enumerate(members)]


class DeletionLoad(threading.Thread):
    """Requests a deletion for each person, one at a time or in bulk, spread over some seconds."""

    def __init__(self, client: Client, people: Sequence[int], seconds: float, seed: int) -> None:
        super().__init__(name="deletion-load")
        self.acknowledged: dict[uuid.UUID, tuple[int, ...]] = {}
        self._client = client
        self._people = people
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._failure: Exception | None = None
        self._stop_early = threading.Event()

    def __enter__(self) -> DeletionLoad:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_early.set()
        self.join()

    def finish(self) -> Mapping[uuid.UUID, tuple[int, ...]]:
        """Wait until all requests are acknowledged; return the people of each deletion."""
        self.join()
        if self._failure is not None:
            raise self._failure
        return self.acknowledged

    def run(self) -> None:
        started, count = time.monotonic(), 0
        try:
            while count < len(self._people) and not self._stop_early.is_set():
                size = self._rng.randint(2, MAX_BULK) if self._rng.random() < 0.2 else 1
                people = self._people[count : count + size]
                for person, deletion_id in zip(people, self._request(people), strict=True):
                    self.acknowledged[deletion_id] = (person,)
                count += len(people)
                due = started + self._seconds * count / len(self._people)
                self._stop_early.wait(max(0.0, due - time.monotonic()))
        except Exception as error:  # raised again in the thread of the test
            self._failure = error

    def _request(self, people: Sequence[int]) -> list[uuid.UUID]:
        if len(people) == 1:
            return [uuid.UUID(self._client.delete([samples.person(people[0])])["id"])]
        results: list[dict[str, Any]] = self._client.delete_many(
            [{"subjects": [samples.person(person)]} for person in people]
        )
        assert {result["status"] for result in results} == {201}, results[:1]
        return [uuid.UUID(result["id"]) for result in results]
