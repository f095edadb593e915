"""Sphinx's settings for the site: tox run -e docs.

The reference is made from the docstrings and annotations of the `.py` files. Compiled modules show
neither all signatures nor types, so the package is to be installed without its extension modules.
PyTorch and matplotlib are mocked: nothing of them is shown, and PyTorch would make the environment
ten times as large. Nothing here uses the network.
"""

from importlib import metadata

from sphinx.errors import ConfigError
from sphinx.ext.autodoc.mock import mock

from kineto_step_tracker import backend

if backend != "portable":
    raise ConfigError(
        "The reference cannot be made from compiled modules. Install the package with "
        "KINETO_STEP_TRACKER_NO_EXTENSIONS=1, or let tox run -e docs do it."
    )

autodoc_mock_imports = ["lightning", "matplotlib", "torch", "transformers"]
# What a mock returns is false, and the fleet refuses a PyTorch without torch.distributed.
with mock(autodoc_mock_imports):
    import torch.distributed

    torch.distributed.is_available = lambda: True
    import kineto_step_tracker.fleet  # noqa: F401

project = "kineto-step-tracker"
author = "The kineto-step-tracker developers"
release = version = metadata.version(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
nitpicky = True

# The description on PyPI, which has a page of its own since no relative link leads anywhere there.
exclude_patterns = ["pypi.md"]
myst_heading_anchors = 3

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = project
html_static_path = ["_static"]
html_css_files = ["drawings.css"]
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# What docstrings put between single backticks is code, and a link where it names something here.
default_role = "py:obj"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_custom_sections = [("Thread-safety and progress", "returns_style")]
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Names of other projects, which only the network could turn into links, and a private one.
_elsewhere = (
    *(r"torch(\..+)?", r"os\..+", r"collections\.abc\..+", r"pathlib\.Path", "logging", "warnings"),
    *("Callable", "Iterator", "Mapping", "Sequence", "Path", "Store", "Enum", "StrEnum"),
    *("Optimizer", "TracebackType", "BaseException"),
    *(
        "_Tracker",
        "NamedTuple",
        "ExceptionGroup",
        r"\w+Error(, \w+Error)*",
        "KeyboardInterrupt",
        "SystemExit",
    ),
)
nitpick_ignore_regex = [("py:.*", "|".join(_elsewhere))]


def _readable(app, what, name, obj, options, signature, returns):
    """Show as ``...`` the default that a dataclass makes anew, which else is not even Python."""
    return signature and signature.replace("<factory>", "..."), returns


def setup(app):
    app.connect("autodoc-process-signature", _readable)
