"""torchrl's native segment trees, without which its prioritized samplers raise.

The binary in torchrl's wheel only loads into the torch it was built with. The wheel also ships the
sources; where the binary does not load they are compiled here, once, unchanged and optimized, into
the environment that runs this. So torchrl is measured with its own code, or not at all.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

MODULE = "torchrl._torchrl"


def package_folder() -> Path:
    """Where torchrl is installed; found without importing it."""
    spec = importlib.util.find_spec("torchrl")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("torchrl is not installed in this environment")
    return Path(spec.submodule_search_locations[0])


def shipped_binaries() -> list[Path]:
    """The compiled extension of the wheel, if it has one."""
    return sorted(package_folder().glob("_torchrl*.so"))


def shipped_sources() -> list[str]:
    """The C++ files that make the CPU extension."""
    return [str(package_folder() / "csrc" / name) for name in ("pybind.cpp", "utils.cpp")]


def load_extension() -> str:
    """Make `torchrl._torchrl` importable. Call before `torchrl.data` is imported.

    Returns "shipped" or "rebuilt". Raises what the compiler raised if there is none that works.
    """
    import torch  # noqa: F401  (its libraries must be loaded before the binary's)

    for binary in shipped_binaries():
        spec = importlib.util.spec_from_file_location(MODULE, binary)
        if spec is None or spec.loader is None:
            continue
        try:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError:
            continue
        sys.modules[MODULE] = module
        return "shipped"
    from torch.utils import cpp_extension

    # The compiler's helper (ninja) lives beside the interpreter, which need not be on PATH.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder = Path(sys.prefix) / "torchrl_extension"
    folder.mkdir(exist_ok=True)
    sys.modules[MODULE] = cpp_extension.load(
        name="_torchrl",
        sources=shipped_sources(),
        extra_cflags=["-O3"],
        build_directory=str(folder),
    )
    return "rebuilt"
