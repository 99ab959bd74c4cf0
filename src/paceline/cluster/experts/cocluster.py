"""Balanced co-clustering: experts that the same tokens use lie together, and each token's home is with them.

The paper's objective, for one mixture: place experts g(e) and tokens h(t) to maximise the sum over tokens of
count(t, e) with g(e) = h(t), the local activations, where each process has its share of the experts, and no more than
its share of the load, plus some slack. Two steps alternate, and neither can make it worse: with experts fixed a token
goes where most of its routes are; with tokens fixed, pairs of experts change places. Begun again from random placements
and from shaken ones, in place of the paper's cross-entropy search.
"""

import torch
from torch import Tensor


def local(counts: Tensor, place: Tensor, devices: int) -> Tensor:
    """[tokens, devices], how many routes of each token go to each process; `counts` [tokens, experts]."""
    return counts @ torch.nn.functional.one_hot(place, devices).to(counts.dtype)


def local_share(counts: Tensor, place: Tensor, devices: int) -> float:
    """Share of the routes that stay where their token is, if each token is at its best process."""
    return float(local(counts, place, devices).max(1).values.sum() / counts.sum())


def swap_experts(gain: Tensor, load: Tensor, place: Tensor, most: float) -> Tensor:
    """Exchange pairs of experts while that adds local activations; `gain` [experts, devices], what each expert would
    add at each process; `load` [experts]. No process gets more load than `most`, or than it has."""
    place, devices = place.clone(), gain.shape[1]
    each = torch.arange(len(place))
    for _ in range(4 * len(place)):
        at = gain[each, place]
        better = gain[:, place] + gain[:, place].T - at[:, None] - at[None, :]  # [e, f]: e to f's place and back
        held = torch.zeros(devices, dtype=load.dtype).index_add_(0, place, load)
        after = held[place][:, None] - load[:, None] + load[None, :]  # of e's process
        fits = after <= held[place][:, None].clamp(min=most) + 1e-9
        better[~(fits & fits.T) | (place[:, None] == place[None, :])] = 0
        best = int(better.argmax())
        if not better.view(-1)[best] > 1e-9 * (1 + float(gain.abs().max())):
            break
        e, f = divmod(best, len(place))
        place[[e, f]] = place[[f, e]]
    return place


def settle(counts: Tensor, place: Tensor, devices: int, most: float) -> list[Tensor]:
    """Placements of the alternation in turn, from `place` to one that no step makes better."""
    load, path = counts.sum(0), [place]
    for _ in range(50):
        home = local(counts, place, devices).argmax(1)
        gain = (torch.nn.functional.one_hot(home, devices).to(counts.dtype).T @ counts).T
        new = swap_experts(gain, load, place, most)
        if torch.equal(new, place):
            break
        path.append(place := new)
    return path


def cocluster(counts: Tensor, devices: int, slack: float = 0.1, restarts: int = 8, seed: int = 0) -> Tensor:
    """[experts] int64, a process for each; `counts` [tokens, experts]. The load of a process is at most 1 + `slack` of
    the mean where the balanced placement that it begins with allows that."""
    stream, experts = torch.Generator().manual_seed(seed), counts.shape[1]
    load = counts.sum(0)
    most = (1 + slack) * float(load.sum()) / devices
    first = balanced(load, devices)
    held = torch.zeros(devices, dtype=load.dtype).index_add_(0, first, load)
    most = max(most, float(held.max()))
    best, worth = first, -1.0
    for turn in range(restarts):
        start = within(load, grown(counts, devices), devices, most) if turn == 1 else best
        if turn > 1:
            start = start.clone()
            for e, f in torch.randint(experts, (max(2, experts // 4), 2), generator=stream).tolist():
                start[[e, f]] = start[[f, e]]
            start = within(load, start, devices, most)
        found = settle(counts, start, devices, most)[-1]
        if (share := local_share(counts, found, devices)) > worth:
            best, worth = found, share
    return best


def grown(counts: Tensor, devices: int) -> Tensor:
    """A placement to begin with: around the expert with the most load of those that are left, the experts that the same
    tokens use most, until a process has its number."""
    experts, load = counts.shape[1], counts.sum(0)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    near = shares.T @ counts / load.clamp(min=1).sqrt()
    place = torch.full((experts,), -1)
    for device in range(devices):
        free = (place < 0).nonzero().flatten()
        group = [int(free[load[free].argmax()])]
        for _ in range((experts + devices - 1 - device) // devices - 1):
            place[group] = device
            worth = near[:, group].sum(1).masked_fill(place >= 0, -1)
            group.append(int(worth.argmax()))
        place[group] = device
    return place


def within(load: Tensor, place: Tensor, devices: int, most: float) -> Tensor:
    """This placement where its load is allowed, else the balanced one."""
    held = torch.zeros(devices, dtype=load.dtype).index_add_(0, place, load)
    return place if float(held.max()) <= most + 1e-9 else balanced(load, devices)


def balanced(load: Tensor, devices: int) -> Tensor:
    """EPLB's rule without copies (DeepSeek 2025, `balanced_packing`): the experts with the most load first, each to the
    process with the least so far of those that have room."""
    experts = len(load)
    sizes = [(experts + devices - 1 - d) // devices for d in range(devices)]
    held, place = [0.0] * devices, torch.zeros(experts, dtype=torch.int64)
    for expert in load.argsort(descending=True, stable=True).tolist():
        at = min((d for d in range(devices) if sizes[d] > 0), key=lambda d: (held[d], d))
        place[expert], sizes[at] = at, sizes[at] - 1
        held[at] += float(load[expert])
    return place


def in_turn(experts: int, devices: int) -> Tensor:
    """Round robin."""
    return torch.arange(experts) % devices
