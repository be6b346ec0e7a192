"""What every section of the configuration shares: strict, frozen, and errors in our own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.config.problems import Key, Problem, config_error, problems_of

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class _Door(ModelMetaclass):
    """Makes `SomeSection(...)` raise ConfigError; nested validation stays pydantic's."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            section: type[Section] = self  # type: ignore[assignment]
            found = problems_of(error, section, kwargs)
            raise config_error(
                Problem(section.yaml_key + p.key, p.message) for p in found
            ) from None


class Section(BaseModel, metaclass=_Door):
    """A mapping of the YAML.

    Raises:
        ConfigError: when made with an unknown key, a wrong type or a value out of range; it names
            each key and what is allowed.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    yaml_key: ClassVar[Key] = ()
    """Where the section sits in a run file."""
