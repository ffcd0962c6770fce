"""The compiled Check of gRPC, as the type checker sees it."""

from typing import Any

def __getattr__(name: str) -> Any: ...
