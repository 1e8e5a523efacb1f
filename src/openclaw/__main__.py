"""``python -m openclaw`` is the ``openclaw`` command."""

import os
import sys

# Python puts the present folder first when it is started with -m. A file there must not pass for one of our modules.
sys.path[:] = [place for place in sys.path if place and place != os.getcwd()]  # noqa: PTH109

from openclaw.cli.main import main  # noqa: E402

sys.exit(main())
