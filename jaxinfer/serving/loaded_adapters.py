"""The adapters that an engine's host has loaded, by name."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from jaxinfer.checks import show
from jaxinfer.config import EngineConfig
from jaxinfer.errors import AdapterNotFoundError
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.adapters.device_slots import ADAPTERS, shardings_of
from jaxinfer.model.adapters.lora_request import LoRARequest
from jaxinfer.model.adapters.peft_files import read_peft
from jaxinfer.model.adapters.shape import AdapterShape
from jaxinfer.model.architecture import activation_dtype
from jaxinfer.rollouts.mapping import ParamsMapping, check_mapping
from jaxinfer.serving.adapter_trees import AdapterTrees
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.startup.loading import Loaded


class LoadedAdapters:
    """Loaded adapters, by name; may be used from several threads.

    Args:
        shape: what adapters must fit; None in an engine without adapters, which refuses all.
        most: adapters to keep; None keeps all.
    """

    def __init__(self, shape: AdapterShape | None, most: int | None) -> None:
        self._shape, self._most = shape, most
        self._trees = None if shape is None else AdapterTrees(shape)
        self._loading = threading.Lock()  # held while files are read
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, Adapter] = OrderedDict()
        self._paths: dict[str, str] = {}
        """The directories of those that gave way to others, to be read again."""

    @classmethod
    def of(cls, config: EngineConfig, loaded: Loaded) -> "LoadedAdapters":
        """None yet, for one engine."""
        if not config.enable_lora:
            return cls(None, None)
        runner, ranks = loaded.replicas[0].runner, config.max_lora_rank
        places = tuple(jax.tree.leaves(shardings_of(runner.programs.params[ADAPTERS])))
        if len(loaded.replicas) > 1:
            places = ()
        dtype = activation_dtype(runner.wanted_params)
        return cls(AdapterShape(loaded.model_config, dtype, ranks, places), config.max_cpu_loras)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all loaded ones."""
        with self._lock:
            return tuple(sorted({*self._loaded, *self._paths}))

    def load(
        self,
        name: str,
        source: Any,
        scale: float | None,
        mapping: ParamsMapping | None = None,
        *,
        replaces: bool,
    ) -> Adapter:
        """Load an adapter from a directory or a tree of arrays.

        Args:
            scale: what the product of a tree's matrices is multiplied by; None is 1.
            mapping: of a tree with names of its own to PEFT's.
            replaces: whether one of that name is loaded and to be replaced, or not to be loaded.

        Raises:
            TypeError, ValueError, ModelLoadError: in one line; nothing has changed.
        """
        shape = self._needed_shape()
        if not isinstance(name, str) or not name:
            raise TypeError(f"an adapter's name must be a string, not empty, got {show(name)}")
        path = source if isinstance(source, (str, Path)) else None
        if path is not None and scale is not None:
            raise ValueError("scale is of arrays; a directory's adapter_config.json has its own")
        if path is not None and mapping is not None:
            raise ValueError("mapping is of arrays; a directory has PEFT's names")
        check_mapping(mapping)
        with self._loading:
            with self._lock:
                if replaces:
                    self._check_known(name)
                elif name in self._loaded or name in self._paths:
                    raise ValueError(
                        f"adapter {show(name)} is loaded; replace it (update_adapter, "
                        "load_inplace) or unload it"
                    )
            if path is not None:
                adapter = _read(shape, name, path)
            else:
                assert self._trees is not None
                scale = 1.0 if scale is None else scale
                adapter = self._trees.adapter(name, source, scale, mapping)
            self._add(adapter)
            return adapter

    def unload(self, name: str) -> None:
        """Forget an adapter; requests that have it end with it.

        Raises:
            AdapterNotFoundError: none of that name is loaded.
        """
        self._needed_shape()
        with self._loading, self._lock:  # not while it is being replaced
            self._check_known(name)
            self._loaded.pop(name, None)
            self._paths.pop(name, None)

    def adapted(self, prompts: Sequence[Prompt], given: Any) -> list[Prompt]:
        """Prompts with the adapters that a call asks for.

        Args:
            given: as of `find`, for all prompts, or a sequence with one for each.

        Raises:
            TypeError, ValueError, ModelLoadError: as `find`; or the numbers differ.
        """
        if not isinstance(given, Sequence) or isinstance(given, str):
            adapter = self.find(given)
            return [replace(prompt, adapter=adapter) for prompt in prompts]
        if len(given) != len(prompts):
            raise ValueError(
                f"lora_request has {len(given)} entries for a call of {len(prompts)}; give one for "
                "each prompt"
            )
        found = {id(each): self.find(each) for each in given}  # an object is looked up once
        pairs = zip(prompts, given, strict=True)
        return [replace(prompt, adapter=found[id(each)]) for prompt, each in pairs]

    def find(self, given: Any) -> Adapter | None:
        """The adapter that a request asks for, loaded from its directory if it isn't.

        Args:
            given: a `LoRARequest`, the name of a loaded one, what `find` returned, or None.

        Raises:
            TypeError: it is none of these.
            AdapterNotFoundError: no adapter of that name is loaded.
            ValueError, ModelLoadError: it can't be loaded, or the name is another one's.
        """
        if given is None or isinstance(given, Adapter):
            return given
        if not isinstance(given, (LoRARequest, str)):
            kind = type(given).__name__
            raise TypeError(f"lora_request must be a LoRARequest or a loaded name, got {kind}")
        shape = self._needed_shape()
        if isinstance(given, str):
            return self._of_name(shape, given)
        name, path = given.lora_name, given.lora_path
        with self._loading:
            found = self._used(name)
            if found is None or given.load_inplace:
                found = _read(shape, name, path)
                self._add(found)
        if found.path is None:
            raise ValueError(
                f"adapter {show(name)} was loaded from arrays, not from {path}; ask for it by its "
                f"name alone, lora_request={show(name)}, or take another name, or load_inplace=True"
            )
        if found.path != path:
            raise ValueError(
                f"adapter {show(name)} was loaded from {found.path}, not {path}; take another "
                "name, or load_inplace=True"
            )
        return found

    def _of_name(self, shape: AdapterShape, name: str) -> Adapter:
        """The loaded adapter of a name; one that gave way to others is read again."""
        if (found := self._used(name)) is not None:
            return found
        with self._loading:
            with self._lock:
                self._check_known(name)
                path = self._paths.get(name)
            if path is None:  # another thread has read it meanwhile
                return self._loaded[name]
            found = _read(shape, name, path)
            self._add(found)
            return found

    def _used(self, name: str) -> Adapter | None:
        """The adapter of a name, if it is in memory, which is now the last to give way."""
        with self._lock:
            if name not in self._loaded:
                return None
            self._loaded.move_to_end(name)
            return self._loaded[name]

    def _needed_shape(self) -> AdapterShape:
        if self._shape is None:
            raise ValueError("adapters need an engine with enable_lora=True")
        return self._shape

    def _check_known(self, name: Any) -> None:
        if name not in self._loaded and name not in self._paths:
            known = ", ".join(sorted({*self._loaded, *self._paths})) or "none"
            raise AdapterNotFoundError(f"no adapter {show(name)} is loaded; loaded are: {known}")

    def _add(self, adapter: Adapter) -> None:
        with self._lock:
            is_new = adapter.name not in self._loaded
            if is_new and self._most is not None and len(self._loaded) >= self._most:
                from_files = (each for each in self._loaded.values() if each.path is not None)
                if (oldest := next(from_files, None)) is None:
                    raise ValueError(
                        f"max_cpu_loras={self._most} adapters are loaded, all from arrays; unload "
                        "one"
                    )
                assert oldest.path is not None
                self._paths[oldest.name] = oldest.path
                del self._loaded[oldest.name]
            self._paths.pop(adapter.name, None)
            self._loaded[adapter.name] = adapter


def _read(shape: AdapterShape, name: str, path: str | Path) -> Adapter:
    return shape.adapter(name, str(path), read_peft(Path(path).expanduser()))
