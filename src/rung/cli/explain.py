"""`rung explain`: what a metric, a setting or a method is, also by the word of another library."""

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any

import typer

from rung.tracking.definitions import METRICS, Metric

WIDTH = 80
SUPERVISED = "Supervised fine-tuning: the mean of −log π over the tokens of given answers is minimized."
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def explain(
    word: Annotated[
        str | None,
        typer.Argument(help="A metric, a setting or a method; without, all of them.", show_default=False),
    ] = None,
) -> None:
    """Say what a metric, a setting or a method means. Words of other libraries lead to rung's."""
    print("\n".join(index() if word is None else explained(word)))


def index() -> Iterator[str]:
    """All words, grouped, a line each."""
    settings = _settings()
    yield from _columns("Metrics", {name: metric.label for name, metric in METRICS.items()})
    for section in dict.fromkeys(key.rpartition(".")[0] for key in settings):
        keys = {
            key: field.description for key, field in settings.items() if key.rpartition(".")[0] == section
        }
        yield from _columns(f"Settings in [{section}]" if section else "Settings", keys)
    yield from _columns("Methods", {name: _first_line(made) for name, made in _methods().items()})
    yield "rung explain WORD says more of each."


def explained(word: str) -> list[str]:
    """What a word means; under each of its meanings, where it has several.

    Raises:
        UsageError: it has none; the nearest is suggested.
    """
    from rung.errors import UsageError
    from rung.training.explain import REFUSED, nearest

    name, _, value = (part.strip() for part in word.partition("="))
    found = _entries(name)
    lines = []
    if not found:
        name, home = _elsewhere(name)
        found = _entries(home) if home else []
        lines = (
            _wrapped("", f'"{name}" is another library\'s word. Nearest to it here: {home}.') if home else []
        )
    method = _method(value) if any(title == "method (setting)" for title, _ in found) else ""
    if method:
        lines += _wrapped("", f"What elsewhere is called {value} may differ in its parts; these are rung's.")
        found = _entries(method)
    if not found and name in REFUSED:
        return _wrapped("", f"rung refuses {name}: {REFUSED[name]}.")
    if not found:
        hint = nearest(name, _known())
        raise UsageError(f'"{word}" is no metric, setting or method{hint}\n       rung explain lists all')
    for title, body in found:
        lines += ([""] if lines else []) + [title, *body]
    return lines


def _entries(name: str) -> list[tuple[str, list[str]]]:
    """Everything of this name, as title and lines: a setting may be called as a metric is."""
    found = []
    if name in METRICS:
        found.append((f"{name} (metric): {METRICS[name].label}", list(_metric(METRICS[name]))))
    for key, field in _settings().items():
        if name in (key, key.rpartition(".")[2]):
            found.append((f"{key} (setting)", list(_setting(key, field))))
    if not found and _method(name):
        found.append((f"{_method(name)} (method)", list(_explained_method(_method(name)))))
    return found


def _elsewhere(word: str) -> tuple[str, str]:
    """A word of another library, without the sections before it, and rung's for it; "" where there is none."""
    from rung.training.explain import ELSEWHERE, METHODS_ELSEWHERE, METRICS_ELSEWHERE

    table = METRICS_ELSEWHERE | METHODS_ELSEWHERE | ELSEWHERE
    for part in (word, word.rpartition(".")[2], word.rpartition("/")[2]):
        if part in table:
            return part, table[part]
    return word, ""


def _method(word: str) -> str:
    """The method of this name, however it is spelled; "" where there is none."""
    from rung.training.explain import METHODS_ELSEWHERE

    name = word.lower()
    name = METHODS_ELSEWHERE.get(name, name).replace("_", "-")
    return name if name in _methods() else ""


def _metric(metric: Metric) -> Iterator[str]:
    yield from _wrapped("  ", metric.one_line)
    for label, text in (
        ("formula", metric.formula),
        ("normaliser", metric.normaliser),
        ("expected", metric.expected),
        ("odd", metric.odd),
    ):
        yield from _labeled(label, text)
    near = [name for name in METRICS if name.startswith(f"{metric.name}_")]
    if near:
        yield from _labeled("see also", ", ".join(near))


def _setting(key: str, field: Any) -> Iterator[str]:
    yield from _wrapped("  ", field.description)
    inner = _section_of(field)
    if inner is not None:
        yield from _labeled("keys", ", ".join(inner.model_fields))
        return
    yield from _labeled("type", _kind(field.annotation))
    bounds = [
        f"{sign} {getattr(m, a):g}" for m in field.metadata for a, sign in SIGNS.items() if hasattr(m, a)
    ]
    if bounds:
        yield from _labeled("bounds", ", ".join(bounds))
    takers = _takers(key)
    if takers:
        yield from _labeled("default", "the method's own" if field.default is None else repr(field.default))
        for value, names in takers.items():
            yield from _labeled("", f"{value}: {', '.join(names)}")
    elif key in ("kl_target", "kl_horizon"):
        names = [name for names in _takers("kl_coefficient").values() for name in names]
        yield from _labeled("default", "none: the KL coefficient stays as it is")
        yield from _labeled("methods", ", ".join(name for name in names if name != "ppo-penalty"))
    elif field.is_required():
        yield from _labeled("default", "the file's name" if key == "name" else "none: a recipe sets it")
    else:
        yield from _labeled("default", "none" if field.default is None else str(field.default))
    if key == "method":
        yield from _labeled("one of", ", ".join(_methods()))
    words = _words_for(key)
    if words:
        yield from _labeled("elsewhere", ", ".join(words))


def _explained_method(name: str) -> Iterator[str]:
    made = _methods()[name]
    yield from _wrapped("  ", _first_line(made))
    if name == "sft":
        return
    from rung.training.sections import Rollout

    parameters = inspect.signature(made).parameters
    method = made(**({"length": Rollout().max_new_tokens} if "length" in parameters else {}))
    for slot in ("credit", "policy_loss", "aggregation", "select", "correction", "update"):
        part = getattr(method, slot)
        part = part.func if isinstance(part, partial) else part
        if part is not None:
            named = getattr(part, "__name__", type(part).__name__)
            yield from _labeled(slot.replace("_", " "), f"{named}: {_first_line(part)}")
    kl = method.kl
    estimator = f"{kl.estimator.__name__} in the {kl.placement}, against the {kl.against} policy"
    yield from _labeled("KL", estimator + ("" if kl.beta else "; off unless kl_coefficient is set"))
    for key in parameters:
        if key in _settings():
            value = next(value for value, names in _takers(key).items() if name in names)
            yield from _labeled("setting", f"{key} = {value}")
    if "values" in method.needs:
        yield from _labeled("critic", "it needs one: verified, and not yet trained by rung train")
    yield from _labeled("claim", f"`rung verify {name}` says what it estimates, and measures it")


def _takers(key: str) -> dict[str, list[str]]:
    """Which methods have a setting, by the value that it has there where a recipe says nothing."""
    found: dict[str, list[str]] = {}
    for name, made in _methods().items():
        parameter = inspect.signature(made).parameters.get(key) if name != "sft" else None
        if parameter is not None:
            value = getattr(parameter.default, "coefficient", parameter.default)
            steered = " at first" if value is not parameter.default else ""
            text = "max(rollout.max_new_tokens // 5, 1)" if value is None else f"{value:g}{steered}"
            found.setdefault(text, []).append(name)
    return found


def _settings() -> dict[str, Any]:
    """Every key of a recipe as a person writes it, `rollout.temperature`, with its field."""
    from rung.training.sections import Keys

    top = Keys.model_fields
    inside = {
        f"{name}.{key}": inner
        for name, field in top.items()
        for section in [_section_of(field)]
        if section is not None
        for key, inner in section.model_fields.items()
    }
    return dict(top) | inside


def _section_of(field: Any) -> Any:
    """The section's class where a field is one."""
    options = (field.annotation, *getattr(field.annotation, "__args__", ()))
    return next((option for option in options if hasattr(option, "model_fields")), None)


def _methods() -> dict[str, Any]:
    from rung.methods import CATALOGUE

    return {"sft": SUPERVISED, **CATALOGUE}


def _known() -> list[str]:
    from rung.training.explain import ELSEWHERE, METHODS_ELSEWHERE, METRICS_ELSEWHERE

    keys = list(_settings())
    own = [*METRICS, *keys, *(key.rpartition(".")[2] for key in keys), *_methods()]
    return [*own, *ELSEWHERE, *METHODS_ELSEWHERE, *METRICS_ELSEWHERE]


def _words_for(key: str) -> list[str]:
    from rung.training.explain import ELSEWHERE

    return sorted(word for word, home in ELSEWHERE.items() if home == key)


def _kind(annotation: Any) -> str:
    """A type in words: `int | None` is a whole number."""
    if isinstance(annotation, type) and annotation is not tuple and not getattr(annotation, "__args__", ()):
        return {int: "whole number", float: "number", str: "text", type(None): ""}[annotation]
    inner = getattr(annotation, "__args__", ())
    if getattr(annotation, "__origin__", None) is tuple:
        return f"list of {len(inner)} numbers"
    kinds = [f'"{part}"' if isinstance(part, str) else _kind(part) for part in inner]
    return " or ".join(kind for kind in kinds if kind)


def _first_line(part: Any) -> str:
    return part if isinstance(part, str) else (inspect.getdoc(part) or "").split("\n")[0]


def _wrapped(indent: str, text: str, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _labeled(label: str, text: str) -> list[str]:
    return _wrapped(" " * 15, text, f"  {label:<13}")


def _columns(title: str, rows: dict[str, str]) -> Iterable[str]:
    """A title and a line for each row, cut to fit; the whole of it is in the row's own explanation."""
    width = max(map(len, rows))
    yield title
    for name, text in rows.items():
        yield f"  {name:<{width}}  " + textwrap.shorten(
            text, WIDTH - width - 4, placeholder=" …", break_on_hyphens=False
        )
    yield ""
