"""Servers that `lethe bench intake` compares, and their set-up."""

from __future__ import annotations

import contextlib
import socket
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from safetensors.numpy import save
from sqlalchemy import Column, DateTime, MetaData, String, Table, Uuid, create_engine, insert

from service.app import create_app
from service.http.server import server_config
from service.logs import configure_logging
from service.settings import Settings
from service.store import migrate
from service.store.access.identities import Identity, IdentityHasher
from service.store.access.tokens import issue_token
from service.store.artifacts.location import open_artifacts
from service.store.database import Database
from service.store.models.registry import Registration, register
from service.store.states import Role

OURS_PATH = "/api/v1/deletions"
BARE_PATH = "/rows"
ROWS = Table(
    "bench_rows",
    MetaData(),
    Column("id", Uuid, primary_key=True),
    Column("name", String(600)),
    Column("received_at", DateTime(timezone=True)),
)


class Subject(BaseModel):
    identity_type: str
    identity_value: str


class RowIn(BaseModel):
    regulation: str
    subjects: list[Subject]


class RowOut(BaseModel):
    id: UUID
    received_at: datetime


def person(number: int) -> dict[str, str]:
    return {"identity_type": "email", "identity_value": f"person-{number}@example.org"}


def prepare(settings: Settings, people: int) -> str:
    """Create the tables and a model with `people` subjects, and return a compliance token."""
    database = Database(settings.database)
    try:
        migrate.upgrade(database)
        ROWS.create(database.engine)
        _register(settings, database, people)
        with database.writing() as session:
            return issue_token(session, "bench", Role.COMPLIANCE, actor="lethe bench")
    finally:
        database.close()


def serve_ours(settings: Settings, listener: socket.socket) -> None:
    with (settings.data_dir / "api.log").open("w") as stream, contextlib.redirect_stdout(stream):
        configure_logging(settings.log_level)
        _serve(server_config(create_app(settings), settings), listener)


def serve_bare(settings: Settings, listener: socket.socket) -> None:
    """Serve the simplest handler: validate a body, insert a row, return a model."""
    engine = create_engine(settings.database)
    app = FastAPI()

    @app.post(BARE_PATH, status_code=201)
    def insert_row(body: RowIn) -> RowOut:
        row = RowOut(id=uuid4(), received_at=datetime.now(UTC))
        with engine.begin() as connection:
            name = body.subjects[0].identity_value
            connection.execute(insert(ROWS), {"id": row.id, "name": name, "received_at": row.received_at})
        return row

    _serve(uvicorn.Config(app, log_config=None, access_log=False, server_header=False), listener)


def _serve(config: uvicorn.Config, listener: socket.socket) -> None:
    uvicorn.Server(config).run(sockets=[listener])


def _register(settings: Settings, database: Database, people: int) -> None:
    points = np.random.default_rng(1).normal(size=(people, 2))
    hasher = IdentityHasher(*settings.identity_keys())
    config: dict[str, Any] = {"components": 1, "dimensions": 2, "prior_std": 1.0}
    registration = Registration(
        name="bench",
        family="gaussian-mixture",
        config=config,
        policy={"epsilon": 1e-3, "level": "proved", "rungs": ["retrain"], "seconds": None},
        posterior=save({"mean": np.zeros((1, 2)), "std": np.ones((1, 2))}),
        records=save({"x": points}),
        lookups=[hasher.lookup(Identity("email", person(number)["identity_value"])) for number in range(people)],
    )
    register(database, open_artifacts(settings), registration, actor="lethe bench")
