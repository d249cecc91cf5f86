"""`python -m localspec`."""

import sys

try:
    from localspec.cli import main
except KeyboardInterrupt:  # so soon that nothing has begun
    sys.exit(130)

main()
