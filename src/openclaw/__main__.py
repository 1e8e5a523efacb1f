"""``python -m openclaw`` is the ``openclaw`` command."""

import sys

from openclaw.cli.main import main

sys.exit(main())
