"""The kernel of `turn_and_write`."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def turn_rows(  # type: ignore[no-untyped-def]
    qkv, cos, sin, slot, pool, stride, cos_stride, sin_stride, slots, heads, kv_heads,
    DIM: tl.constexpr, LANES: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """One head of one row: `heads` queries, then keys, then values. TURNED: numbers that are rotated. Values are
    written as guard.py does."""
    row, head, lane = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, LANES)
    inside, own = lane < DIM, qkv + row * stride + head * DIM
    part = head + lane * 0  # the interpreter cannot join a mask of lanes and one number
    x = tl.load(own + lane, mask=inside, other=0.0)
    turned = (lane < TURNED) & (part < heads + kv_heads)
    other = tl.where(lane < TURNED // 2, lane + TURNED // 2, lane - TURNED // 2)
    pair = tl.load(own + other, mask=turned, other=0.0).to(tl.float32)
    c = tl.load(cos + row * cos_stride + lane, mask=turned, other=1.0).to(tl.float32)
    s = tl.load(sin + row * sin_stride + lane, mask=turned, other=0.0).to(tl.float32)
    y = (x.to(tl.float32) * c + pair * s).to(x.dtype)
    value = own + tl.where(part < heads + kv_heads, kv_heads, 0) * DIM  # a key's value
    kept, there = y.to(pool.dtype.element_ty), inside & (part >= heads)
    others = tl.load(value + lane, mask=there, other=0.0).to(pool.dtype.element_ty)
    spoilt = tl.sum(kept.to(tl.float32) * 0 + others.to(tl.float32) * 0, 0)  # 0 or NaN
    spoilt += lane * 0.0
    mended = tl.where(kept.to(tl.float32) * 0 == 0, kept, 0.0)
    kept = tl.where(spoilt == 0, kept, tl.where(part < heads + kv_heads, float("nan"), mended))
    where = tl.load(slot + row + lane * 0)
    tl.debug_barrier()  # another warp may still have to read the numbers that are replaced now
    tl.store(own + lane, y, mask=inside & (part < heads))
    place = (tl.maximum(head - heads, 0).to(tl.int64) * slots + where) * DIM + lane
    tl.store(pool + place, kept, mask=inside & (part >= heads) & (where >= 0))
