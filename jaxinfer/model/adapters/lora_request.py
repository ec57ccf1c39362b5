"""A request's LoRA adapter, by vLLM's name and fields."""

from dataclasses import dataclass, field
from pathlib import Path

from jaxinfer.checks import check_flag, check_integer, show

_MOST_ID = 2**31 - 1


@dataclass(frozen=True)
class LoRARequest:
    """An adapter in a directory as PEFT saves it, loaded when it is first asked for.

    >>> LoRARequest("sql", 1, "/adapters/sql").name
    'sql'

    Attributes:
        lora_name: names it; requests of the same name share it.
        lora_int_id: vLLM's number of it, from 1; the name alone counts here.
        lora_path: the directory, of ``adapter_config.json`` and ``adapter_model.safetensors``.
        base_model_name: vLLM's; not read.
        load_inplace: read the directory again, though the name is loaded. Requests that run keep
            the version that they began with.

    Raises:
        TypeError, ValueError: a field has another type, or is empty; names it.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = field(compare=False)
    base_model_name: str | None = field(default=None, compare=False)
    load_inplace: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        """Check the fields."""
        if isinstance(self.lora_path, Path):
            object.__setattr__(self, "lora_path", str(self.lora_path))
        for name in ("lora_name", "lora_path"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise TypeError(f"{name} must be a string that is not empty, got {show(value)}")
        check_integer("lora_int_id", self.lora_int_id, 1, _MOST_ID)
        check_flag("load_inplace", self.load_inplace)

    @property
    def name(self) -> str:
        """`lora_name`."""
        return self.lora_name

    @property
    def path(self) -> str:
        """`lora_path`."""
        return self.lora_path


AdapterChoice = LoRARequest | str | None
"""An adapter, the name of a loaded one, or none."""
