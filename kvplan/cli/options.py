"""Options that commands share, and those of records as options of a command."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from kvplan.arguments import Names, Option, Whole, options_of
from kvplan.cli import completion


class DocumentFormat(StrEnum):
    """Formats of a result."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


# Where nothing stands for itself: the help says what is taken then.
option, argument = partial(typer.Option, show_default=False), partial(typer.Argument, show_default=False)

Asked: TypeAlias = dict[str, Any]  # what is given of the options of a record
Profile = Annotated[
    str | None,
    argument(
        metavar="PROFILE",
        help="A TOML file, '-' for standard input, or the name of a shipped profile. "
        "Default: the shipped llama-3.1-8b-rtx4090.",
        autocompletion=completion.profiles,
    ),
]
Plot = Annotated[
    Path | None,
    option("--plot", metavar="FILE.svg", help="Also draw the plots of the result to this file; or a .png."),
]
Format = Annotated[DocumentFormat, typer.Option("--format", help="Format of the result.")]
Full = Annotated[bool, typer.Option("--full", help="Show everything, not the first screen alone.")]
Output = Annotated[
    Path | None,
    option(
        "--output", "-o", metavar="FILE", help="Write the result to this file instead of standard output."
    ),
]


def of(*records: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of records in place of its parameter `asked`, which has what is given of them."""
    options = {name: option for record in records for name, option in options_of(record).items()}
    options = {name: option for name, option in options.items() if option.flag is not None}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            asked = {name: given.pop(name) for name in options}
            asked = {name: value for name, value in asked.items() if value != options[name].default}
            command(asked={name: value for name, value in asked.items() if value is not None}, **given)

        parameters: list[Parameter] = []
        for parameter in signature(command, eval_str=True).parameters.values():
            keyword = parameter.replace(kind=Parameter.KEYWORD_ONLY)
            parameters += _parameters(options) if parameter.name == "asked" else [keyword]
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameters(options: dict[str, Option[Any, Any]]) -> Iterator[Parameter]:
    for name, each in options.items():
        how: dict[str, Any] = {"metavar": each.metavar, "help": each.help}
        how["show_default"] = not each.repeats and "Default:" not in each.help
        if isinstance(each, Whole) and each.shell is int:
            how |= {"min": each.least, "max": each.most}
        if each.complete:
            complete = getattr(completion, each.complete)
            how["autocompletion"] = completion.listed(complete) if isinstance(each, Names) else complete
        kind: Any = list[each.shell] if each.repeats else each.shell  # type: ignore[name-defined]
        default = None if each.default == () else each.default
        annotation: Any = Annotated[
            kind if default is not None else kind | None, typer.Option(each.flag, **how)
        ]
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
