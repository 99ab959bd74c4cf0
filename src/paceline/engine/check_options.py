"""Values of options that are wrong whatever the models are: refused before anything is loaded."""

from paceline.attend.device import tensors_on
from paceline.core.errors import InputError, RefusalError
from paceline.draft import DRAFTERS
from paceline.draft.settings import settings_of
from paceline.engine.experts import check_experts
from paceline.engine.gpu import check_device
from paceline.engine.layers import check_layer_options
from paceline.engine.options import Options
from paceline.engine.ranks import check_ranks


def check_options(options: Options) -> None:
    """Refuse values that are wrong whatever the models are, before anything is loaded."""
    from paceline.cache.policies import policy
    from paceline.schedule import policies as schedules

    least = {
        "blocks": 1,
        "threads": 1,
        "block_size": 1,
        "max_requests": 1,
        "max_loras": 1,
        "row_budget": 1,
        "max_model_len": 2,
    }
    for name, minimum in least.items():
        value = getattr(options, name)
        if value is not None and value < minimum:
            raise InputError(f"{name} is {value}, but it must be at least {minimum}.")
    check_experts(options)
    check_ranks(options)
    check_layer_options(options)
    if options.substitute and not options.zoo:
        raise InputError("substitute is given, but there is no zoo whose layers it could be about; give both.")
    if options.state_memory is not None and options.kv_disk is not None:
        raise InputError("kv_disk keeps blocks with their states, and state_memory leaves most without; give one.")
    policy(options.eviction)
    check_length(options.length, options.drafter)
    schedules.check(options.schedule, options.order, options.tbt_target_ms, options.group_size, options.layer_groups)
    check_device(options.device, options.dtype)
    check_overlap(options.overlap, options.device)
    check_online(options.online, options.drafter)
    settings_of(options.drafter_settings)


def check_length(length: str, drafter: object) -> None:
    """Raise InputError or RefusalError for a length policy that is not known, or cannot serve this drafter."""
    from paceline.plan import POLICIES

    card, name = POLICIES.card(length), drafter if isinstance(drafter, str) else "user" if drafter else "auto"
    if not card.arms and DRAFTERS.card(name).arms:
        raise RefusalError(f"length {length!r} does not choose between drafters; name one in place of {name!r}.")


def check_overlap(overlap: str, device: str) -> None:
    """Raise InputError for a placement that is not known, or that this device does not have."""
    from paceline.engine.placement import placement

    placement(overlap, tensors_on(device))


def check_online(online: float, drafter: object) -> None:
    """Raise InputError or RefusalError for a share that is none, or a drafter that does not learn while it serves."""
    if not 0 <= online <= 1:
        raise InputError(f"online is {online}, but it must be a share of a core, from 0 (off) to 1.")
    if online and drafter != "crossvocab":
        raise RefusalError(f"online is {online}, but only the drafter crossvocab learns while it serves; name it.")
