"""The wire contract: the .thrift files beside this module, and their values in the modules of this package.

`common`, `batchsize_manager`, `parameter_server` and `data_partition` hold the structs, exceptions and
services under the names that the files give them. They are loaded on first use, since values need no Thrift.
"""

from pathlib import Path
from types import ModuleType

__all__ = ["batchsize_manager", "common", "data_partition", "parameter_server"]

batchsize_manager: ModuleType
common: ModuleType
data_partition: ModuleType
parameter_server: ModuleType

_FOLDER = Path(__file__).parent


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Loaded through a file that includes it, `common` is the same for all of them.
    module: ModuleType = _load("batchsize_manager").common if name == "common" else _load(name)
    globals()[name] = module
    return module


def _load(name: str) -> ModuleType:
    import thriftpy2

    module: ModuleType = thriftpy2.load(
        str(_FOLDER / f"{name}.thrift"), module_name=f"evenpace_idl.{name}_thrift"
    )
    return module
