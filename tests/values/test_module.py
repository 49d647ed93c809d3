"""The package: what importing it costs, its names, and the native module's stub."""

from __future__ import annotations

import ast
import enum
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import contig
from contig import _native

HEAVY = ("torch", "jax", "jaxlib", "gymnasium", "tensordict", "ray", "minari", "starlette")


def modules_after(code: str) -> set[str]:
    """Top-level modules loaded in a fresh process that has run `code`."""
    code += "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_contig_imports_nothing_else() -> None:
    loaded = modules_after("import contig")
    assert "contig" in loaded
    assert loaded.isdisjoint([*HEAVY, "numpy", "optree", "ml_dtypes"])


def test_using_contig_imports_nothing_heavy() -> None:
    loaded = modules_after(
        """
import contig
for name in contig.__all__:
    torch_modules = ("GRUModule", "LSTMModule", "RolloutDataset", "RolloutFileBase")
    of_extras = ("contig.rollout", "contig.cluster")
    if name not in torch_modules and contig._MODULE_OF[name] not in of_extras:
        getattr(contig, name)
import numpy as np
buffer = contig.ReplayBuffer(contig.LazyTensorStorage(8), contig.RandomSampler(), batch_size=4)
buffer.extend({"x": np.arange(8.0), "next": {"done": np.arange(8) % 4 == 3, "reward": np.ones(8)}})
buffer.add({"x": np.float64(1), "next": {"done": True, "reward": 1}})
assert buffer.sample()["x"].shape == (4,)
"""
    )
    assert {"numpy", "optree"} <= loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", contig.__all__)
def test_every_name_resolves(name: str) -> None:
    found = getattr(contig, name)
    assert found.__name__ == {"DistributedCollector": "RayCollector"}.get(name, name)
    assert found.__module__.startswith("contig")
    assert name in dir(contig)


def test_a_name_there_is_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = contig.Nonsense
    assert not hasattr(contig, "np")


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert contig.__version__ == version("contig")


# -- the stub -------------------------------------------------------------------------------------


def declared(body: list[Any]) -> set[str]:
    """Names a stub declares; type aliases (plain assignments) are not part of the module."""
    names = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            names |= {ast.unparse(name) for name in node.targets[0].elts}  # members of an enum
    return names


STUB = ast.parse((Path(contig.__file__).parent / "_native.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def public(names: Any) -> set[str]:
    return {n for n in names if not n.startswith("_")}


def test_the_stub_has_the_modules_names() -> None:
    assert declared(STUB.body) == public(vars(_native))


@pytest.mark.parametrize("name", CLASSES)
def test_the_stub_has_the_classes_members(name: str) -> None:
    assert public(declared(CLASSES[name].body)) == public(vars(getattr(_native, name)))


@pytest.mark.parametrize("name", CLASSES)
def test_the_stub_has_the_classes_bases(name: str) -> None:
    stub = {ast.unparse(b).removeprefix("enum.") for b in CLASSES[name].bases} or {"object"}
    assert stub == {base.__name__ for base in getattr(_native, name).__bases__}


def enums(body: list[Any], holder: Any) -> Iterator[tuple[ast.ClassDef, Any]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            native = getattr(holder, node.name)
            if isinstance(native, enum.EnumType):
                yield node, native
            yield from enums(node.body, native)


def test_the_stubs_enums_have_the_values() -> None:
    found = list(enums(STUB.body, _native))
    assert {"RunFlag", "Event"} <= {node.name for node, _ in found}
    for node, native in found:
        (assign,) = [each for each in node.body if isinstance(each, ast.Assign)]
        names, values = (
            ast.unparse(side).strip("()") for side in (assign.targets[0], assign.value)
        )
        stub = dict(zip(names.split(", "), map(int, values.split(", ")), strict=True))
        assert stub == {member.name: member.value for member in native}


def arguments(text: str) -> list[str]:
    """Argument names of a signature, without self; nanobind calls positional ones arg0, arg1."""
    node: Any = ast.parse(re.sub(r"ndarray\[[^]]*\]", "ndarray", text) + ": ...").body[0]
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    return [n for n in names if n != "self"]


def functions() -> list[tuple[str, Any, Any]]:
    out = []
    for owner, body in [("", STUB.body), *((n, c.body) for n, c in CLASSES.items())]:
        for node in body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
                continue
            if any(ast.unparse(d) == "property" for d in node.decorator_list):
                continue
            holder = getattr(_native, owner) if owner else _native
            out.append((f"{owner}.{node.name}".strip("."), node, getattr(holder, node.name)))
    return out


FUNCTIONS = functions()


@pytest.mark.parametrize(
    ("node", "function"), [f[1:] for f in FUNCTIONS], ids=[f[0] for f in FUNCTIONS]
)
def test_the_stub_has_the_functions_arguments(node: Any, function: Any) -> None:
    (signature, *_rest), *_ = function.__nb_signature__
    native = arguments(signature.replace("\\", ""))  # a default is given by its number
    stub = [a.arg for a in [*node.args.posonlyargs, *node.args.args] if a.arg != "self"]
    assert len(native) == len(stub)
    if not all(n.startswith("arg") for n in native):
        assert native == stub, "names are part of the interface where they can be given"
