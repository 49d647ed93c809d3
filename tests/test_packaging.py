"""What is installed with the package, and what importing it needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import contig

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = {
    name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name != "dev"
}

#: Distributions whose modules are called otherwise.
MODULES = {"pillow": "PIL", "rsl-rl-lib": "rsl_rl"}
#: Not imported here by name, but by what is, when it is used as the extra says.
THROUGH = {
    ("dm_env", "dm-env"): "shimmy",  # of whose environments its wrapper is
    ("minari", "h5py"): "minari",  # of which its datasets are made
    ("minari", "pillow"): "minari",
}


def distribution(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return found[0]


def module_of(requirement: str) -> str:
    name = distribution(requirement)
    return MODULES.get(name.lower(), name.replace("-", "_"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level modules that a file imports, also those that it names in calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call):
            given = (a.value for a in node.args if isinstance(a, ast.Constant))
            yield from (a.split(".")[0] for a in given if isinstance(a, str))


SOURCES = [ast.parse(path.read_text()) for path in (ROOT / "src" / "contig").rglob("*.py")]
IMPORTED = {name for tree in SOURCES for name in imported(tree)}


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_install_only_what_is_used(extra: str) -> None:
    unused = [
        wanted
        for wanted in EXTRAS[extra]
        if module_of(wanted) not in IMPORTED
        and THROUGH.get((extra, distribution(wanted))) not in map(module_of, EXTRAS[extra])
    ]
    assert unused == []


def test_the_core_needs_what_it_says() -> None:
    assert sorted(map(distribution, PROJECT["dependencies"])) == ["numpy", "optree"]


def test_development_has_what_extras_have() -> None:
    """So that every test of an optional library runs."""
    dev = set(map(distribution, PROJECT["optional-dependencies"]["dev"]))
    wanted = {distribution(each) for extra in EXTRAS.values() for each in extra}
    assert wanted - dev == set()


OPTIONAL = sorted({module_of(each) for extra in EXTRAS.values() for each in extra})

WITHOUT_EXTRAS = f"""
import sys
from importlib.machinery import PathFinder

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run(code: str) -> str:
    command = [sys.executable, "-c", WITHOUT_EXTRAS + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_star_import_without_extras() -> None:
    names = run(
        "from contig import *\n"
        "print(*(name for name in globals() if not name.startswith('_')))\n"
        "buffer = ReplayBuffer(LazyTensorStorage(8), batch_size=2, seed=0)\n"
        "buffer.add({'x': 1.0, 'next': {'done': True}})\n"
        "assert buffer.sample()['x'].shape == (2,)\n"
    ).split()
    assert {"ReplayBuffer", "TcpClient", "Collector", "GAE"} <= set(names)
    assert {"GRUModule", "RolloutStorage", "RayReplayBuffer"}.isdisjoint(names)


def test_star_import_with_extras_has_every_name() -> None:
    assert set(contig.__all__) == set(dir(contig))


@pytest.mark.parametrize(
    ("name", "extra"),
    [("RolloutStorage", "torch"), ("GRUModule", "torch"), ("RayCollector", "ray")],
)
def test_a_missing_library_is_named_with_its_extra(name: str, extra: str) -> None:
    told = run(f"import contig\ntry:\n    contig.{name}\nexcept ImportError as e:\n    print(e)")
    assert f"install contig's extra {extra}" in told and f"pip install '.[{extra}]'" in told


ADAPTERS = {
    "sb3": "sb3",
    "skrl": "skrl",
    "rsl_rl": "rsl-rl",
    "cleanrl": "cleanrl",
    "torchrl": "torchrl",
}


@pytest.mark.parametrize(("adapter", "extra"), ADAPTERS.items())
def test_an_adapter_whose_library_is_missing_names_its_extra(adapter: str, extra: str) -> None:
    told = run(
        f"try:\n    from contig.adapters.{adapter} import ReplayBuffer, Memory, RolloutStorage\n"
        "except ImportError as e:\n    print(e)"
    )
    assert f"contig.adapters.{adapter} needs torch" in told
    assert f"pip install '.[{extra}]'" in told


def test_every_library_of_an_adapter_is_missed_by_name() -> None:
    """Of those that it needs, any one may be missing."""
    code = (
        "import sys\nsys.modules['gymnasium'] = None\n"
        "try:\n    import contig.adapters.cleanrl\nexcept ImportError as e:\n    print(e)"
    )
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "contig.adapters.cleanrl needs gymnasium" in told and "'.[cleanrl]'" in told


def test_no_message_needs_a_package_index() -> None:
    """contig is in no index: whoever follows a message must have what it says."""
    root = Path(contig.__file__).parent
    texts = {path: path.read_text() for path in root.rglob("*.py")}
    assert not [path for path, text in texts.items() if re.search(r"install '?contig\[", text)]


def test_importing_contig_is_cheap() -> None:
    """By what it loads: nothing but itself and the standard library, and little of that."""
    told = run(
        "before = set(sys.modules)\nimport contig\nprint(*set(sys.modules) - before)"
    ).split()
    ours = {name for name in told if name.partition(".")[0] == "contig"}
    others = {name.partition(".")[0] for name in told} - {"contig"}
    assert ours == {"contig"}
    assert others <= set(sys.stdlib_module_names)
    assert others.isdisjoint(["asyncio", "sqlite3", "ssl", "multiprocessing", "inspect", "json"])


def test_the_ten_lines_of_the_readme_load_only_what_the_core_needs() -> None:
    code = "from contig import LazyTensorStorage, ReplayBuffer, SliceSampler\n"
    code += "ReplayBuffer(LazyTensorStorage(8), SliceSampler(slice_len=2))\n"
    told = run(f"before = set(sys.modules)\n{code}print(*set(sys.modules) - before)").split()
    others = {name.partition(".")[0] for name in told} - set(sys.stdlib_module_names)
    others = {name for name in others if "cython" not in name}  # what numpy's are compiled with
    # optree imports typing_extensions.
    assert others - {"contig", "numpy", "optree", "typing_extensions"} == set()


def test_wheels_are_built_for_every_system_and_python() -> None:
    wheels = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert {"linux", "macos", "windows"} <= set(wheels)
    said = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    built = [tag.removesuffix("-*") for tag in wheels["build"]]
    assert built == ["cp" + version.replace(".", "") for version in said]
