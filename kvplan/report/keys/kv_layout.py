"""Keys of the `kv_layout` block."""

from kvplan.report.keys.record import Block, Kind, Record

_NEW = "new, theory of attention of every kind: groups of layers on one pool of blocks, as vLLM makes them"


def _group(name: str, meaning: str, **more: object) -> Record:
    return Record(f"kv_layout.groups[].{name}", meaning, source=_NEW, **more)  # type: ignore[arg-type]


KV_LAYOUT = Block(
    "kv_layout",
    "What a request holds where layers keep KV of several kinds.",
    (
        _group("kind", "What a layer keeps.", kind=Kind.TEXT, allowed=("full", "window", "chunk", "state")),
        _group("layers", "Layers of the kind.", whole=True, least=1.0),
        _group("groups", "Groups that they make, the last one filled up.", whole=True, least=1.0),
        _group("block_tokens", "Tokens of a block in each layer.", unit="tokens", whole=True, least=1.0),
        _group(
            "window_tokens",
            "Tokens of a window or chunk.",
            unit="tokens",
            whole=True,
            least=1.0,
            absent="The layers keep all tokens, or a state.",
        ),
        Record(
            "kv_layout.block_tokens",
            "Tokens of a block in each layer of those with the most bytes per token.",
            source="the profile",
            unit="tokens",
            whole=True,
            least=1.0,
        ),
        Record(
            "kv_layout.block_bytes", "Bytes of a block.", source=_NEW, unit="bytes", whole=True, least=1.0
        ),
        Record(
            "kv_layout.bytes_per_token",
            "Bytes that a long request takes for one token more.",
            source=_NEW,
            unit="bytes",
            whole=True,
        ),
        Record(
            "kv_layout.fixed_tokens_per_request",
            "Pool tokens that a long request holds whatever its length: windows, chunks up to their size, states.",
            source=_NEW,
            unit="tokens",
            whole=True,
        ),
    ),
    absent="All layers keep every token.",
    nullable=True,
)
