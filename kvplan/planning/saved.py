"""Plans of a saved profile: some options asked anew, the rest as it was."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kvplan.errors import UsageError
from kvplan.ingest.model.config import read_model
from kvplan.ingest.model.hardware import find_gpu
from kvplan.ingest.model.shape import ModelShape
from kvplan.options import PlanOptions, Router
from kvplan.planning.demand import Demand, Replay
from kvplan.profile.positions import KeyPath
from kvplan.profile.reading import Profile

TRAFFIC = "classes", "sessions", "workload", "prefix"


@dataclass(frozen=True)
class Stated:
    """Traffic as a profile states it, and where that comes from."""

    tables: dict[str, Any]
    origin: object = None

    @property
    def users(self) -> int | None:
        """Of a closed population that is all there is."""
        every = [*self.tables.get("classes", ()), *self.tables.get("sessions", ())]
        return every[0].get("users") if len(every) == 1 else None


def traffic_of(profile: Profile) -> Stated | Replay:
    """Return the demand of a profile."""
    tables = {name: profile.tables[name] for name in TRAFFIC if name in profile.tables}
    recorded = profile.model.arrivals.trace
    if recorded is None or profile.trace is None:
        return Stated(tables, profile.tables.get("provenance", {}).get("workload"))
    return Replay(tables, recorded, profile.trace.name)


def asked_again(profile: Profile, asked: PlanOptions, *, priced: bool) -> PlanOptions:
    """Fill in options that are not given from a profile; `priced`: its price, too."""
    table, engine, plan = profile.tables.get("model", {}), profile.tables.get("engine", {}), profile.plan
    routing = profile.tables.get("fleet", {}).get("routing")
    known: dict[str, Any] = {
        "gpu": table.get("gpu"),
        "weights": table.get("weights"),
        **{key: table.get(key) for key in ("kv_dtype", "loras", "lora_rank")},
        "engine": "==".join(filter(None, (engine.get("name", "vllm"), engine.get("version")))),
        "gpu_hour": plan.gpu_hour if priced else None,
        "slower": plan.slower,
        "headroom": plan.headroom,
        "spare": plan.spare,
        "router": routing if routing in (Router.ROUND_ROBIN, Router.LEAST_REQUESTS) else None,
    }
    plain = PlanOptions(())
    unset = {key: value for key, value in known.items() if getattr(asked, key) == getattr(plain, key)}
    return replace(asked, **{key: value for key, value in unset.items() if value is not None})


def price_left_out(profile: Profile, asked: PlanOptions) -> str:
    """Say whose price a profile has, where other GPUs are asked for without one; empty where nothing is left out."""
    own, price = profile.tables.get("model", {}).get("gpu"), profile.plan.gpu_hour
    if price is None or asked.gpu_hour or asked.replica_hour or {*map(catalogued, asked.gpu)} <= {own}:
        return ""
    return (
        f"{profile.source} has the price of {own or 'another GPU'}: --gpu-hour gives those asked for theirs"
    )


def catalogued(name: str) -> str:
    """Return the name of a GPU as the catalogue has it, or that of a profile; otherwise an empty one."""
    name = name.removeprefix("./").removesuffix(".toml")
    with suppress(UsageError):
        return find_gpu(name).name if name else name
    return name


def shape_of(profile: Profile) -> ModelShape:
    """Return the model of a profile, with requests no longer than before."""
    table, most = profile.tables.get("model"), profile.tables.get("engine", {}).get("max_model_len")
    if table is None:
        options = "--gpu, --tp and its like, --weights, --kv-dtype and --loras are of a model to estimate"
        raise UsageError(f"{profile.source}: {options}, and the profile has no [model] with its name")
    config = table.get("config")
    shape = read_model(profile.folder / config if config else table["name"])
    return replace(shape, max_model_len=most or shape.max_model_len)


def restated(profile: Profile, asked: PlanOptions, read: Callable[[PlanOptions], Demand | None]) -> Profile:
    """Restate the only class, or conversation, of a profile by the options; `read` makes a demand of them."""
    given = {
        "--in": asked.input is not None,
        "--out": asked.output is not None,
        "--users": asked.users is not None,
        "--system-prompt": asked.system_prompt is not None,
        "--turns": asked.turns is not None,
        "--think": asked.think is not None,
    }
    closed = asked.rate is not None and traffic_of(profile).users is not None
    if not (closed or any(given.values())):
        return profile
    every = [*profile.tables.get("classes", ()), *profile.tables.get("sessions", ())]
    stated = dict(every[0]) if every else {}
    option = next((option for option, is_given in given.items() if is_given), "--rate")
    if len(every) != 1 or profile.trace is not None:
        has = "requests of a trace" if profile.trace is not None else f"{len(every)} classes"
        raise UsageError(
            f"{option}: {profile.source} has {has}; give --in, --out and --rate or --users, all of it"
        )
    full: dict[str, Any] = {"input": asked.input or "1:0", "output": asked.output or "1:0", "trace": None}
    full |= {"rate": 1.0} if asked.users is None else {}
    made = read(replace(asked, **full, think=None))
    assert made is not None
    talks = "first" in stated or made.is_conversation or asked.think is not None
    if talks:  # all that a conversation has, whatever the options say of it
        (new,) = replace(made, think_s=asked.think, users=made.users or 1).tables["sessions"]
        stated = stated if "first" in stated else _session(stated, new)
    else:
        (new,) = made.tables["classes"]
    keys = {"--in": ("input", "first", "user"), "--out": ("decode",), "--users": ("users",)}
    keys |= {"--system-prompt": ("shared",), "--turns": ("turns",), "--think": ("think",)}
    changed = {key: new[key] for option in keys for key in keys[option] if given[option] and key in new}
    if given["--users"] or closed:
        stated = {key: value for key, value in stated.items() if key not in ("rate", "users")}
        stated |= {"rate": 1.0} if closed else {}  # the rate that is asked for takes its place
    table = {**stated, **changed}
    traffic: dict[KeyPath, object] = {
        ("classes",): None if talks else [table],
        ("sessions",): [table] if talks else None,
    }
    if made.origin:
        traffic["provenance", "workload"] = made.origin
    now = profile.changed(traffic)
    if not (given["--turns"] and "rate" in table and asked.rate is None):
        return now
    share = profile.model.total_rate_rps / now.model.total_rate_rps  # as many turns
    return now.changed({("sessions", 0, "rate"): table["rate"] * share})


def _session(table: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """Make a class conversations of one turn."""
    if more := table.keys() - {"name", "input", "decode", "rate"}:
        raise UsageError(
            f"a class with {', '.join(sorted(more))} is not made a conversation; give --in and --out too"
        )
    lengths = {"first": table["input"], "user": table["input"], "decode": table["decode"]}
    return like | lengths | {"name": table["name"], "rate": table["rate"], "shared": 0, "turns": 1}
