"""`python3 -m testbed.cluster`, which tools/testbed calls."""

import sys

from testbed.cluster.cli import main

sys.exit(main())
