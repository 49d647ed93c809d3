"""Repairs of the tape's protocol, as native/tape/tape.cpp does them."""

from __future__ import annotations

from tests.model.fields import repair_fields
from tests.model.memory import CUT, NONE, Memory, Process, Rules


def repair(m: Memory, rules: Rules) -> Process:
    yield from repair_fields(m, rules)
    if m.undo_head != m.head:
        return
    if not rules.repair_clears_last:
        m.undo_head = NONE
        yield
    if m.undo_entry != NONE:
        e = m.index[m.undo_entry % m.capacity]
        steps, flags = m.undo_sf
        if rules.repair_marks_cut:
            flags |= CUT
        if rules.repair_ret_first:
            e.ret = m.undo_ret
            yield
            e.sf = (steps, flags)
            yield
        else:
            e.sf = (steps, flags)
            yield
            e.ret = m.undo_ret
            yield
    if m.undo_producer != NONE:
        m.producers[m.undo_producer] = m.undo_producer_seq
        yield
    if rules.repair_trajectories:
        m.trajectories = m.undo_trajectories
        yield
    if rules.repair_index_head:
        m.index_head = m.undo_index_head
        yield
    m.undo_head = NONE
    yield
