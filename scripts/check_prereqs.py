"""Say what this machine lacks for building hasten, and the one line that installs it; silent when nothing is missing.

Runs on any Python 3, so that an old one is told about and does not fail with a syntax error.
"""

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec

APT_LINE = "sudo apt-get install -y python3-venv python3-dev g++ make"


def missing():
    """Names of what is missing, in words."""
    found = []
    if sys.version_info < (3, 11):  # noqa: UP036 (it runs before we know)
        this = ".".join(map(str, sys.version_info[:2]))
        found.append("Python 3.11 or later (this is " + this + "; choose another with PYTHON=...)")
    # without python3-venv Debian's venv is there, but not the ensurepip that it needs
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        found.append("venv with ensurepip (python3-venv)")
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        found.append("Python.h (python3-dev)")
    if not shutil.which(os.environ.get("CXX", "g++").split()[0]):
        found.append("a C++ compiler (g++)")
    if not shutil.which("make"):
        found.append("make")
    return found


if __name__ == "__main__":
    lacking = missing()
    if lacking:
        sys.stderr.write("missing: " + "; ".join(lacking) + "\nrun:     " + APT_LINE + "\n")
        sys.exit(1)
