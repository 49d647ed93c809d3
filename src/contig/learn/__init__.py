"""What consumes the flat layout: value estimators, recurrent modules, views of trajectories.

    advantage, target = contig.learn.gae(reward=r, value=v, next_value=v2, done=d, terminated=e,
                                         gamma=0.99, lmbda=0.95)

Estimators and views work on numpy arrays without torch; recurrent modules need torch. Names load
when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

_WHERE = {
    "returns": (
        "gae",
        "td0_return",
        "td_lambda_return",
        "discounted_return",
        "vtrace",
        "nstep_return",
    ),
    "estimators": (
        "GAE",
        "TD0",
        "TDLambda",
        "VTrace",
        "NStep",
        "DiscountedReturn",
        "Keys",
    ),
    "mode": ("set_recurrent_mode", "recurrent_mode_state"),
    "recurrent": ("GRUModule", "LSTMModule"),
    "views": ("split_trajectories", "per_trajectory", "pad_slices", "unpad_slices"),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _WHERE)

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
