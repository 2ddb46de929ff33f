"""The OpenAPI description, generated from the types that requests and answers are made of."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

import softindex
from softindex.service.answers import ChangeAnswer, IdsAnswer, InfoAnswer, ItemsAnswer
from softindex.service.bodies import RemoveBody, UpsertBody
from softindex.service.operations import OPERATIONS
from softindex.service.problems import MEDIA_TYPE, ProblemDetails

__all__ = ["describe"]

Schemas = dict[Any, Any]

READING = ("400", "401", "408", "413", "415", "421", "422", "429", "431", "500", "503")
WRITING = (*READING, "403")
LOOKING = ("401", "404", "413", "421", "422", "429", "431", "500", "503")


@cache
def describe() -> dict[str, Any]:
    """The description as a document of OpenAPI 3.1."""
    bodies = [one.body for one in OPERATIONS.values()] + [UpsertBody, RemoveBody]
    answers = [one.answer for one in OPERATIONS.values()]
    answers += [ItemsAnswer, IdsAnswer, ChangeAnswer, InfoAnswer, ProblemDetails]
    types = [*bodies, *answers]
    references, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schemas: Schemas = dict(zip(types, references, strict=True))
    paths = {**_calls(schemas), **_catalogue(schemas), **_own()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "softindex", "version": softindex.__version__, "description": softindex.__doc__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _calls(schemas: Schemas) -> dict[str, Any]:
    """Calls by query."""
    paths: dict[str, Any] = {}
    for path, one in OPERATIONS.items():
        body = {**_content(schemas[one.body]), "application/octet-stream": {"schema": {"type": "string"}}}
        paths[path] = {"post": _operation(one.name, one.summary, schemas[one.answer], READING, body=body)}
    return paths


def _catalogue(schemas: Schemas) -> dict[str, Any]:
    """Items, and what is served."""
    items = {
        "get": _operation("items", "Vectors of items.", schemas[ItemsAnswer], LOOKING, parameters=[_ID_PARAMETER]),
        "put": _operation(
            "upsert",
            "Add or replace items of a catalogue; answered when they are on disk.",
            schemas[ChangeAnswer],
            WRITING,
            body=_content(schemas[UpsertBody]),
        ),
        "delete": _operation(
            "remove",
            "Remove items of a catalogue; answered when that is on disk.",
            schemas[ChangeAnswer],
            WRITING,
            body=_content(schemas[RemoveBody]),
        ),
    }
    ids = {
        "get": _operation(
            "ids", "Ids that begin with a text.", schemas[IdsAnswer], LOOKING, parameters=[_TEXT_PARAMETER]
        )
    }
    info = {"get": _operation("info", "What is served.", schemas[InfoAnswer], LOOKING)}
    return {"/v1/items": items, "/v1/ids": ids, "/v1/info": info}


def _own() -> dict[str, Any]:
    """The state of the server."""
    state = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    return {
        "/livez": {"get": _open("livez", "Whether the process answers.", state, ("421", "431"))},
        "/readyz": {"get": _open("readyz", "Whether it can serve.", state, ("421", "431", "503"))},
        "/metrics": {"get": _metrics()},
    }


_ID_PARAMETER = {
    "name": "id",
    "in": "query",
    "required": True,
    "description": "Id of an item; may be repeated.",
    "schema": {"type": "array", "items": {"type": "string"}, "minItems": 1},
}
_TEXT_PARAMETER = {"name": "text", "in": "query", "schema": {"type": "string"}}


def _content(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    name: str, summary: str, answer: Any, statuses: tuple[str, ...], *, body: Any = None, parameters: Any = None
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "security": [{}, {"key": []}],
        "responses": {"200": {"description": "The answer.", "content": _content(answer)}, **_problems(statuses)},
    }
    if body is not None:
        described["requestBody"] = {"required": True, "content": body}
    if parameters is not None:
        described["parameters"] = parameters
    return described


def _open(name: str, summary: str, answer: Any, statuses: tuple[str, ...]) -> dict[str, Any]:
    return {**_operation(name, summary, answer, statuses), "security": []}


def _metrics() -> dict[str, Any]:
    described = _operation("metrics", "Counters for Prometheus.", {}, ("401", "421", "429", "431", "500"))
    described["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return described


def _problems(statuses: tuple[str, ...]) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {
        status: {"description": "What was wrong, in one sentence.", "content": content} for status in sorted(statuses)
    }
