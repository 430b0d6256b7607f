"""`python3 -m tools.cluster`, which tools/testbed calls."""

import sys

from tools.cluster.cli import main

sys.exit(main())
