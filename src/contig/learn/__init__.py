"""What consumes the flat layout: value estimators, recurrent modules, views of trajectories.

    advantage, target = contig.learn.gae(reward=r, value=v, next_value=v2, done=d, terminated=e,
                                         gamma=0.99, lmbda=0.95)

Estimators and views work on numpy arrays without torch; recurrent modules need torch. Names load
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "contig.learn.returns": (
        "gae",
        "td0_return",
        "td_lambda_return",
        "discounted_return",
        "vtrace",
        "nstep_return",
    ),
    "contig.learn.estimators": (
        "GAE",
        "TD0",
        "TDLambda",
        "VTrace",
        "NStep",
        "DiscountedReturn",
        "Keys",
    ),
    "contig.learn.mode": ("set_recurrent_mode", "recurrent_mode_state"),
    "contig.learn.recurrent": ("GRUModule", "LSTMModule"),
    "contig.learn.views": ("split_trajectories", "per_trajectory", "pad_slices", "unpad_slices"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
__all__ = list(_MODULE_OF)

if TYPE_CHECKING:
    from .estimators import GAE as GAE
    from .estimators import TD0 as TD0
    from .estimators import DiscountedReturn as DiscountedReturn
    from .estimators import Keys as Keys
    from .estimators import NStep as NStep
    from .estimators import TDLambda as TDLambda
    from .estimators import VTrace as VTrace
    from .mode import recurrent_mode_state as recurrent_mode_state
    from .mode import set_recurrent_mode as set_recurrent_mode
    from .recurrent import GRUModule as GRUModule
    from .recurrent import LSTMModule as LSTMModule
    from .returns import discounted_return as discounted_return
    from .returns import gae as gae
    from .returns import nstep_return as nstep_return
    from .returns import td0_return as td0_return
    from .returns import td_lambda_return as td_lambda_return
    from .returns import vtrace as vtrace
    from .views import pad_slices as pad_slices
    from .views import per_trajectory as per_trajectory
    from .views import split_trajectories as split_trajectories
    from .views import unpad_slices as unpad_slices


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'contig.learn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
