"""ctypes twins of `attention/args.h`, field by field."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p, sizeof
from typing import Any

import torch

CHUNK_KEYS = 256
TILE_ROWS = 256
ITEM_FIELDS = 8
MERGE_FIELDS = 5
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def _fields(kind: type[Any], names: str) -> list[tuple[str, type[Any]]]:
    return [(name, kind) for name in names.split()]


class PlanHeader(Structure):
    """`Plan`"""

    _fields_ = (
        *_fields(c_int32, "num_items num_merges num_tokens max_items max_merges max_partial_rows"),
        *_fields(c_void_p, "items merges"),
    )


HEADER_WORDS = sizeof(PlanHeader) // 4


class PlanArgs(Structure):
    _fields_ = (
        *_fields(c_void_p, "plan query_start_loc seq_lens"),
        *_fields(c_int32, "num_reqs num_kv_heads group window num_threads"),
    )


class AttendArgs(Structure):
    _fields_ = (
        *_fields(c_void_p, "plan q out k v block_table partials workspace"),
        *_fields(c_int64, "q_token q_head out_token out_head kv_block kv_token kv_head table_row"),
        *_fields(c_int64, "workspace_bytes"),
        *_fields(c_int32, "workspace_threads out_tokens num_q_heads num_kv_heads head_dim"),
        *_fields(c_int32, "block_size window dtype kv_dtype"),
        *_fields(c_float, "scale softcap"),
    )
