"""Strict query strings: a misspelt filter must not widen what a request acts on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel


async def check_query(request: Request) -> None:
    """Refuse parameters that the route does not have, and repeated ones of which it reads only the last."""
    if not request.url.query:
        return
    lists = _parameters(request.scope["route"])
    counts = Counter(name for name, _ in request.query_params.multi_items())
    if unknown := counts.keys() - lists.keys():
        allowed = f"use {', '.join(sorted(lists))}" if lists else "this path has none"
        # The name of an unknown parameter is input and may be an identity.
        raise _refusal("query", f"{len(unknown)} unknown parameter{'s' * (len(unknown) > 1)}; {allowed}")
    for name, count in counts.items():
        if count > 1 and not lists[name]:
            raise _refusal(f"query.{name}", "given more than once; send one value")


def _refusal(field: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"type": "query", "loc": field.split("."), "msg": message}])


def _parameters(route: APIRoute) -> Mapping[str, bool]:
    """Return the names of the route's query parameters, and whether each may be repeated."""
    return {name: get_origin(annotation) is list for name, annotation in _annotations(route.dependant)}


def _annotations(dependant: Dependant) -> Iterator[tuple[str, Any]]:
    for field in dependant.query_params:
        annotation = field.field_info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from ((name, member.annotation) for name, member in annotation.model_fields.items())
        else:
            yield field.alias, annotation
    for dependency in dependant.dependencies:
        yield from _annotations(dependency)
