"""What a compiled module has of the module that it was made of: parameters, buffers, `eval()`, `to()` and all
else. A compiled module is no `nn.Module` itself: it adds nothing to names in a `state_dict`."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch


class Members:
    """Hands on to the module `fn` what is asked for beside the compiled function's own attributes, which are
    there before `fn` is."""

    def __getattr__(self, name: str) -> Any:
        """An attribute of the module. Its methods that give it back (`eval`, `to`) give this one back."""
        fn = vars(self).get("fn")
        if fn is None:
            raise AttributeError(name)
        if name == "forward":
            return self  # compiled when it is called so too
        found = getattr(fn, name)
        if not isinstance(found, types.MethodType) or found.__self__ is not fn:
            return found

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            return self if result is fn else result

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        fn = own.get("fn")
        if name not in own and isinstance(fn, torch.nn.Module) and hasattr(fn, name):
            setattr(fn, name, value)
        else:
            object.__setattr__(self, name, value)
