"""The wire contract, loaded from the .thrift files beside this module.

`common`, `batchsize_manager`, `parameter_server` and `data_partition` hold the structs, exceptions and
services under the names that the files give them.
"""

from pathlib import Path
from types import ModuleType

import thriftpy2

_FOLDER = Path(__file__).parent


def _load(name: str) -> ModuleType:
    module: ModuleType = thriftpy2.load(
        str(_FOLDER / f"{name}.thrift"), module_name=f"evenpace_idl.{name}_thrift"
    )
    return module


batchsize_manager = _load("batchsize_manager")
parameter_server = _load("parameter_server")
data_partition = _load("data_partition")
common: ModuleType = batchsize_manager.common

__all__ = ["batchsize_manager", "common", "data_partition", "parameter_server"]
