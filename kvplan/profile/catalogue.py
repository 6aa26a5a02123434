"""Profiles that come with kvplan: the shipped ones, each described in a line, and the one to start from."""

from pathlib import Path

from kvplan.errors import ProfileError, UsageError, did_you_mean
from kvplan.profile.reading import DEFAULT_PROFILE, shipped_profiles


def description(text: str) -> str:
    """What a profile says about itself: the first line of its text, if that is a comment.

    Examples
    --------
    >>> description("# Chat on one GPU.\\n#\\n# More about it.\\n\\nschema = 1\\n")
    'Chat on one GPU.'
    """
    first = text.partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def listing() -> str:
    """The shipped profiles, sorted: the name, and below it what it is.

    Examples
    --------
    >>> print(*listing().splitlines()[:2], sep="\\n")
    agents-collapse
      Agents whose prefix cache one burst can empty for good
    """
    lines = []
    for name, path in sorted(shipped_profiles().items()):
        about = description(path.read_text("utf-8")).removesuffix(".")
        lines += [f"{name} (default)" if name == DEFAULT_PROFILE else name, f"  {about}"]
    return "".join(f"{line}\n" for line in lines)


def shipped_text(name: str) -> str:
    """The text of a shipped profile, byte for byte.

    Raises
    ------
    ProfileError
        There is none of that name.

    Examples
    --------
    >>> shipped_text("tool-calls-h100").splitlines()[0]
    '# Fixed-length tool calls on one H100, where greedy admission really loses.'
    """
    shipped = shipped_profiles()
    if name not in shipped:
        shown = name if name.isprintable() and 0 < len(name) <= 100 else repr(name[:100])
        raise ProfileError(
            shown, f"no shipped profile of that name; {did_you_mean(name, shipped, 'there are')}"
        )
    return shipped[name].read_bytes().decode()


def starter() -> str:
    """A commented profile that is complete and valid, to be edited.

    Examples
    --------
    >>> from kvplan.profile.reading import parse_profile
    >>> parse_profile(starter().encode(), "starter.toml").name
    'My service'
    """
    return (Path(__file__).parent / "starter.toml").read_text("utf-8")


def refuse_existing(path: Path) -> None:
    """Refuse to replace a file.

    Raises
    ------
    UsageError
        Something is there already that would be replaced or, if it is a pipe, waited for.
    """
    if path.is_file() or path.is_fifo():
        raise UsageError(f"{path}: exists already; --force replaces it")
