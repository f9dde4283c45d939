"""Bodies and queries of routes as OpenAPI describes them: routes read them by themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

__all__ = ["form_body", "query_parameters", "request_body"]


def request_body(kind: type[BaseModel]) -> dict[str, Any]:
    """Return what a route adds to the document for a JSON body."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, definitions)}}
    return {"requestBody": {"required": True, "content": content}}


def form_body(properties: dict[str, Any], *, required: list[str]) -> dict[str, Any]:
    """Return the same for a form."""
    schema = {"type": "object", "properties": properties, "required": required}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def query_parameters(**schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the same for the parameters of a query, none of which is required."""
    return {"parameters": [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]}


def _inlined(value: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema without references: each body of the document stands for itself."""
    if isinstance(value, dict):
        if (reference := value.get("$ref")) is not None:
            return _inlined(definitions[reference.rpartition("/")[2]], definitions)
        return {key: _inlined(entry, definitions) for key, entry in value.items()}
    return [_inlined(entry, definitions) for entry in value] if isinstance(value, list) else value
