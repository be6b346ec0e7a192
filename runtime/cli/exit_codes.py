"""What the exit status says; shown by --help."""

from __future__ import annotations

from runtime.errors import BackendError, ConfigError, ModelError, StepgraphError

OK = 0
SOME_FAILED = 1
BAD_USAGE = 2
NO_MODEL = 3
NO_BACKEND = 4
BROKEN = 5

HELP = """\
exit status:
  0    all went well
  1    some requests failed; their errors are in the output
  2    bad usage, configuration, input or output file
  3    the model or its tokenizer cannot be loaded
  4    no attention backend or graph mode can do what was asked
  5    the engine failed, or an output could not be written
  130  interrupted (143: terminated); what was finished or begun is in the output
"""


def exit_code_of(error: BaseException) -> int:
    """The exit status of an error that ends a command."""
    if isinstance(error, ConfigError):
        return BAD_USAGE
    if isinstance(error, ModelError):
        return NO_MODEL
    if isinstance(error, BackendError):
        return NO_BACKEND
    if isinstance(error, StepgraphError):
        return BAD_USAGE if isinstance(error, ValueError) else BROKEN
    return BROKEN
