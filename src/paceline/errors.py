"""Every error that paceline raises on purpose.

PacelineError
├── OptionError        an option has a value that is not allowed (or is unknown)
├── RequestError       a request cannot be served as asked (too long, empty)
├── ModelError         a model cannot be read
│   ├── ModelNotFound      no such file, directory, package or hub id
│   ├── CorruptModel       truncated file, missing or misshapen tensor
│   └── UnsupportedModel   a good file of a kind that no installed runner can run
├── VocabularyError    drafter and target do not speak the same tokens
├── HistoryError       a file of past outputs cannot be used
├── ResourceError      the machine lacks what is needed
│   ├── OutOfMemory        memory plan larger than what is free
│   └── DiskFull           a cache could not be written
└── MissingExtra       an optional dependency is not installed

Messages are one line: what was given, what is allowed, what to do.
"""


class PacelineError(Exception):
    """Base of the tree; `except PacelineError` catches every mistake that a caller can correct."""


class OptionError(PacelineError, ValueError):
    """An option is unknown or out of range."""


class RequestError(PacelineError, ValueError):
    """A request cannot be served as asked."""


class ModelError(PacelineError):
    """A model cannot be read."""


class ModelNotFound(ModelError):
    """There is no model at the place that was named."""


class CorruptModel(ModelError):
    """A model file is damaged or incomplete."""


class UnsupportedModel(ModelError):
    """No installed runner can run this architecture or format."""


class VocabularyError(PacelineError):
    """The drafter's tokens are not the target's."""


class HistoryError(PacelineError):
    """A file of past outputs is missing, damaged or of another kind."""


class ResourceError(PacelineError):
    """The machine lacks memory or disk."""


class OutOfMemory(ResourceError):
    """More memory is needed than is free."""


class DiskFull(ResourceError):
    """A file could not be written for want of space."""


class MissingExtra(PacelineError):
    """An optional dependency is needed and not installed."""
