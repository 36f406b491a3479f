"""Commands that take each setting of a daemon as a flag.

The settings are imported only when their command runs or shows its help, because `potluck --help` must not wait for pydantic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from averaging.host.settings import DaemonSettings

_FLAGS: Final = "potluck.flags"
"""Under this key a command's context holds the flags; see `flags_given`."""


def command_with_flags(settings: Callable[[], type[DaemonSettings]]) -> type[TyperCommand]:
    """The `cls` of a command that has a flag for each field of these settings.

    The command itself takes a `typer.Context` and calls `flags_given` with it.
    """

    @cache
    def options() -> tuple[Any, ...]:
        return _options(settings())

    class CommandWithFlags(TyperCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            """Arguments, then the settings, then the command's own options."""
            own = super().get_params(ctx)
            first = [each for each in own if each.param_type_name == "argument"]
            return [*first, *options(), *(each for each in own if each not in first)]

        def invoke(self, ctx: Any) -> Any:
            """Runs the command; puts the flags aside for it."""
            ctx.meta[_FLAGS] = {option.name: ctx.params.pop(option.name) for option in options()}
            return super().invoke(ctx)

    return CommandWithFlags


def flags_given(context: typer.Context) -> dict[str, object]:
    """The flags of a command, by the names of their settings; None for those that were not given."""
    return dict(context.meta[_FLAGS])


def flag_help(text: str, field: FieldInfo) -> str:
    """The description of a setting, with its default if that is a value."""
    default = field.default
    if field.default_factory is not None or default in (None, "") or isinstance(default, bool):
        return text
    return f"{text} Default: {default:g}." if isinstance(default, float) else f"{text} Default: {default}."


def _options(settings: type[DaemonSettings]) -> tuple[Any, ...]:
    """One option a field, in the order of the panels. Typer makes options of a function's parameters, so this makes a function of
    that signature.
    """
    from rich.markup import escape  # typer takes help texts as markup

    from averaging.host.settings import descriptions

    def flags() -> None:
        pass

    texts = descriptions(settings)
    panels = {name: title for title, names in settings.panels.items() for name in names}
    places = {name: place for place, name in enumerate(panels)}
    parameters = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                _value_type(field.annotation) | None,
                typer.Option(
                    *_names(name, field),
                    help=escape(flag_help(texts.get(name, ""), field)),
                    rich_help_panel=panels.get(name),
                    path_type=Path,  # type: ignore[arg-type] # older releases of typer leave a path as text without this class
                ),
            ],
        )
        for name, field in sorted(settings.model_fields.items(), key=lambda item: places.get(item[0], -1))
    ]
    flags.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(flags)
    return tuple(typer.main.get_command(app).params)


ALSO: Final = "also"
"""Key in a field's `json_schema_extra`: another name of its flag."""


def _names(name: str, field: FieldInfo) -> list[str]:
    from averaging.host.settings import flag_of

    more = field.json_schema_extra
    also = [flag_of(str(more[ALSO]))] if isinstance(more, dict) and ALSO in more else []
    return [f"{flag_of(name)}/{flag_of(f'no_{name}')}" if field.default is True else flag_of(name), *also]


def _value_type(annotation: object) -> type:
    """The type that typer reads. Ranges and choices are checked by the settings, which know the file and the variables, too."""
    if get_origin(annotation) is Annotated:
        return _value_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        (kind,) = (each for each in get_args(annotation) if each is not NoneType)
        return _value_type(kind)
    if get_origin(annotation) is Literal:
        return str
    if annotation in (str, int, float, bool, Path):
        return annotation
    raise TypeError(f"a setting of type {annotation}: expected str, int, float, bool, Path or a Literal of strings")
